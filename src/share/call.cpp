// SPDX-License-Identifier: Apache-2.0
#include "share/call.h"

#include "share/patience.h"
#include "share/process_name.h"

namespace onecopy {

Call::Call(const ProcessId& called)
    : to(called),
      socket(UnixSocket::connect(socket_name(public_name(called)), broker_patience())),
      nonce(wire::new_nonce()),
      since(std::chrono::steady_clock::now()) {
  socket.send(wire::pack(wire::Type::hello, wire::Hello{nonce}), {}, broker_patience());
}

}  // namespace onecopy
