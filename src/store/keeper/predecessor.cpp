// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/deadline.h"
#include "os/log.h"
#include "store/format/message.h"
#include "store/keeper/holdings.h"

namespace onecopy::store {

/// Waits for both halves: after `ready` both end, and else neither, since its guard replaces a worker that is killed. Each
/// new worker of the successor asks again, whichever worker was killed here.
bool Predecessor::await_end() {
  try {
    if (socket) socket.send(pack(Ready{}), {}, kPatience);
  } catch (const Error& error) {
    log_info("the keeper that is replaced cannot be told: {}", error.what());
  }
  point("store.replace.ready");
  const Deadline deadline = Deadline::after(kPatience);
  for (const Fd& process : processes) {
    if (deadline.wait_for(process.get(), POLLIN)) continue;
    log_error("the store's keeper goes on, and is not replaced");
    return false;
  }
  socket = UnixSocket();
  processes.clear();
  return true;
}

}  // namespace onecopy::store
