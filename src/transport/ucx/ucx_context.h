// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "transport/ucx/ucp.h"

namespace onecopy::ucx {

/// Returns a context that uses the transports between hosts. Variables ONECOPY_UCX_<setting> are its settings. Throws
/// system.
ucp_context_h make_context(const Library& library, std::chrono::milliseconds peer_timeout);
/// Returns the transports and devices that UCX finds, such as "tcp/eth0". Throws unsupported without UCX, and system.
std::vector<std::string> find_devices();

}  // namespace onecopy::ucx
