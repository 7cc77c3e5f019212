// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric.h"

#include "core/throw_error.h"
#ifndef ONECOPY_WITHOUT_UCX
#include "transport/ucx/ucp.h"
#include "transport/ucx/ucx_context.h"
#include "transport/ucx/ucx_pipe.h"
#include "transport/ucx/ucx_worker.h"
#endif

namespace onecopy::transport {

std::string fabric_by(const char* setting, const std::string& value) {
  if (!value.empty() && value != "tls" && value != "ucx")
    throw_error(ErrorCode::invalid_argument, "{} must be tls or ucx, not \"{}\"", setting, value);
  return value == "tls" ? "" : value;
}

void require_fabric(std::string_view name) {
  if (name != "ucx") throw_error(ErrorCode::invalid_argument, "no fabric is called \"{}\"", name);
#ifdef ONECOPY_WITHOUT_UCX
  throw Error(ErrorCode::unsupported,
              "this onecopy was built without UCX: build it with -DONECOPY_UCX=ON, or use \"tls\"");
#else
  ucx::Library::get();
#endif
}

FoundFabric find_fabric(std::string_view name) {
  require_fabric(name);
#ifdef ONECOPY_WITHOUT_UCX
  return {};
#else
  const ucx::Library& library = ucx::Library::get();
  return {library.path(), library.version(), ucx::find_devices()};
#endif
}

std::shared_ptr<Fabric> make_fabric(std::string_view name, [[maybe_unused]] EventLoop& loop,
                                    [[maybe_unused]] std::chrono::milliseconds peer_timeout) {
  require_fabric(name);
#ifdef ONECOPY_WITHOUT_UCX
  return nullptr;
#else
  return std::make_shared<UcxWorker>(loop, peer_timeout);
#endif
}

std::unique_ptr<FabricPipe> make_pipe(std::string_view name, [[maybe_unused]] int beside) {
  require_fabric(name);
#ifdef ONECOPY_WITHOUT_UCX
  return nullptr;
#else
  return std::make_unique<UcxPipe>(beside);
#endif
}

}  // namespace onecopy::transport
