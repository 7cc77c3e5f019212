// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "os/fd.h"

namespace onecopy {

/// A flag that a Poller can wait for (eventfd): its descriptor is readable while the flag is set.
///
/// Thread safety: all members may be called concurrently; set() also from a signal handler. A forked child shares the
/// flag with its parent.
class Event {
 public:
  Event();

  void set() noexcept;
  void clear() noexcept;
  int fd() const noexcept { return fd_.get(); }

 private:
  Fd fd_;
};

}  // namespace onecopy
