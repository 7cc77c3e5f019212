// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric.h"

#include "core/throw_error.h"
#include "transport/ucx/ucp.h"
#include "transport/ucx/ucx_worker.h"

namespace onecopy::transport {

void require_fabric(std::string_view name) {
  if (name != "ucx") throw_error(ErrorCode::invalid_argument, "no fabric is called \"{}\"", name);
  ucx::Library::get();
}

std::shared_ptr<Fabric> make_fabric(std::string_view name, EventLoop& loop,
                                    std::chrono::milliseconds peer_timeout) {
  require_fabric(name);
  return std::make_shared<UcxWorker>(loop, peer_timeout);
}

}  // namespace onecopy::transport
