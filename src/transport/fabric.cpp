// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric.h"

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "transport/ucx/ucp.h"
#include "transport/ucx/ucx_worker.h"

namespace onecopy::transport {

void require_fabric(std::string_view name) {
  if (name != "ucx")
    throw Error(ErrorCode::invalid_argument, fmt::format("no fabric is called \"{}\"", name));
  ucx::Library::get();
}

std::shared_ptr<Fabric> make_fabric(std::string_view name, EventLoop& loop,
                                    std::chrono::milliseconds peer_timeout) {
  require_fabric(name);
  return std::make_shared<UcxWorker>(loop, peer_timeout);
}

}  // namespace onecopy::transport
