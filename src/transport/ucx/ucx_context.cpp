// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_context.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "os/log.h"

namespace onecopy::ucx {
namespace {

/// Sets an option, unless the user has set it by a variable ONECOPY_UCX_<name>.
void set(const Library& library, ucp_config_t* config, const char* name, const std::string& value) {
  if (std::getenv(fmt::format("ONECOPY_UCX_{}", name).c_str())) return;
  if (library.ucp_config_modify(config, name, value.c_str()) < 0)
    log_debug(fmt::format("UCX {} knows no {}", library.version(), name));
}

}  // namespace

ucp_context_h make_context(const Library& library, std::chrono::milliseconds peer_timeout) {
  library.ucs_global_opts_set_value("WARN_UNUSED_ENV_VARS",
                                    "n");  // no warning about ONECOPY_UCX_LIBRARY, which UCX does not know
  library.ucs_global_opts_set_value("MEMTYPE_CACHE", "n");  // its hooks would patch the driver
  ucp_config_t* config = nullptr;
  library.must(library.ucp_config_read("ONECOPY", nullptr, &config), "ucp_config_read");
  const std::string timeout = fmt::format("{}ms", peer_timeout.count());
  // The TLS connection notices a cut first. UCX's own TCP connections send again after pauses that double.
  const std::string patience = fmt::format("{}ms", 3 * peer_timeout.count());
  set(library, config, "TLS",
      "^sm,posix,sysv,cma,xpmem,knem");        // memory of this host is shared without UCX
  set(library, config, "RCACHE_ENABLE", "n");  // its hooks would patch libc
  set(library, config, "KEEPALIVE_INTERVAL", timeout);
  set(library, config, "TCP_KEEPIDLE", timeout);
  set(library, config, "TCP_USER_TIMEOUT", patience);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  const ucs_status_t status = library.ucp_init_version(1, 17, &params, config, &context);
  library.ucp_config_release(config);
  library.must(status, "ucp_init");
  return context;
}

ucp_worker_h make_worker(const Library& library, ucp_context_h context, Receive receive, void* arg) {
  ucp_worker_params_t own{};
  own.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  own.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  library.must(library.ucp_worker_create(context, &own, &worker), "ucp_worker_create");
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = receive;
  handler.arg = arg;
  const ucs_status_t status = library.ucp_worker_set_am_recv_handler(worker, &handler);
  if (status < 0) library.ucp_worker_destroy(worker);
  library.must(status, "ucp_worker_set_am_recv_handler");
  return worker;
}

Bytes address_of(const Library& library, ucp_worker_h worker) {
  ucp_address_t* address = nullptr;
  std::size_t size = 0;
  library.must(library.ucp_worker_get_address(worker, &address, &size), "ucp_worker_get_address");
  const auto* const begin = reinterpret_cast<const std::byte*>(address);
  Bytes bytes(begin, begin + size);
  library.ucp_worker_release_address(worker, address);
  return bytes;
}

ucp_ep_h connect(const Library& library, ucp_worker_h worker, ByteSpan address, ucp_err_handler_t broken) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = broken;
  ucp_ep_h endpoint = nullptr;
  library.must(library.ucp_ep_create(worker, &params, &endpoint), "ucp_ep_create");
  return endpoint;
}

void close(const Library& library, ucp_ep_h endpoint) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS;
  params.cb.send = [](void* request, ucs_status_t, void*) { Library::get().ucp_request_free(request); };
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  library.ucp_ep_close_nbx(endpoint, &params);
}

std::vector<std::string> find_devices() {
  const Library& library = Library::get();
  const ucp_context_h context = make_context(library, std::chrono::seconds{30});
  char* text = nullptr;
  std::size_t size = 0;
  if (std::FILE* const out = ::open_memstream(&text, &size)) {
    library.ucp_context_print_info(context, out);
    std::fclose(out);
  }
  library.ucp_cleanup(context);
  std::istringstream lines(text ? text : "");
  std::free(text);
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);)  // "#  resource 1  :  md 1  dev 1  flags -- tcp/eth0"
    if (line.find(" resource ") != std::string::npos)
      found.push_back(line.substr(line.find_last_of(' ') + 1));
  return found;
}

}  // namespace onecopy::ucx
