// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/deadline.h"
#include "os/log.h"
#include "store/format/message.h"
#include "store/keeper/holdings.h"

namespace onecopy::store {

/// Waits for both halves. After `ready` both end; otherwise neither ends, since the guard replaces a killed worker.
/// Each new worker of the successor calls await_end() again, because the last one may have been killed while it waited.
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
