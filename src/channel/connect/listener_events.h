// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "os/deadline.h"
#include "os/fd.h"
#include "os/poller.h"

namespace onecopy {

/// A descriptor that is readable while a listener's accept() has work to do. The descriptor watches the listener's
/// socket, its clients, and a timer for the moment at which a listener without room may drop a client.
///
/// Thread safety: none. Invariant: a descriptor is removed before it is closed, because a forked child may keep its
/// file open.
class ListenerEvents {
 public:
  /// Watches the socket of a listener. Throws out_of_descriptors, system.
  explicit ListenerEvents(int listening);

  int fd() const noexcept { return poller_.fd(); }
  void add(int client) { poller_.add(client, 0); }
  void remove(int client) noexcept { poller_.remove(client); }
  /// Watches the listener's socket, or the time `room` if the listener has no room for another client until then.
  void listen_until(bool listens, Deadline room);
  /// Returns true in the process that made it: a forked child shares the descriptor, and must not change it.
  bool is_ours() const noexcept;

 private:
  Poller poller_;
  Fd timer_;
  int listening_;
  bool listens_ = true;
  int maker_;
};

}  // namespace onecopy
