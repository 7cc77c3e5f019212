// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "onecopy/core/bytes.h"
#include "transport/ucx/ucp.h"

namespace onecopy::ucx {

/// Returns a context that uses the transports between hosts. Variables ONECOPY_UCX_<setting> are its settings. Throws
/// system.
ucp_context_h make_context(const Library& library, std::chrono::milliseconds peer_timeout);
/// Returns a worker, whose messages of id 0 `receive` takes. Throws system.
ucp_worker_h make_worker(const Library& library, ucp_context_h context, Receive receive, void* arg);
/// Returns the address that others connect to.
Bytes address_of(const Library& library, ucp_worker_h worker);
/// Connects a worker to the worker at an address. `broken`: is called when the connection ends. Throws system.
ucp_ep_h connect(const Library& library, ucp_worker_h worker, ByteSpan address, ucp_err_handler_t broken);
/// Ends a connection, and the requests of it.
void close(const Library& library, ucp_ep_h endpoint);
/// Returns the transports and devices that UCX finds, such as "tcp/eth0". Throws unsupported without UCX, and system.
std::vector<std::string> find_devices();

}  // namespace onecopy::ucx
