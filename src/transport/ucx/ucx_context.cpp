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
