// SPDX-License-Identifier: Apache-2.0
// The stages of a borrower's connection, and the steps from one to the next. Nothing here knows a socket or a process:
// the Broker reports events, and carries out the step.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <variant>

#include "os/backoff.h"
#include "share/broker/undelivered_items.h"

namespace onecopy {

/// The Broker's view of a connection.
struct Sight {
  std::chrono::steady_clock::time_point now;
  bool has_spoken = false;  ///< messages wait to be read
  bool has_pidfd = true;    ///< then the end of its process is an event
  bool has_exited = false;
  bool has_device_memory = false;     ///< a device may still be at work for it when its mappings are gone
  std::function<bool()> maps_page{};  ///< takes long: asked only when it is due
  std::optional<bool> may_have_children{};  ///< that never connected; empty if this was no time to look
};

enum class Step : std::uint8_t {
  wait,        ///< an event reports the next step, or nothing ever does
  look_again,  ///< only another look will tell
  end,         ///< its process has ended
  release,     ///< its claims fall, but for those of items in queues
  drop,        ///< nothing is left of it
};

/// Has not proved yet that it holds a handle.
struct Stranger {
  bool is_challenged = false;  ///< its proof is on its way
  /// Since when its messages are read. They may have waited before, for a watch thread that was late.
  std::optional<std::chrono::steady_clock::time_point> heard_since{};

  Step look(const Sight& sight, std::chrono::milliseconds silence);
};

/// Has a claim page. A forked child's connection begins here.
struct Borrower {
  /// Its connection has closed, which is a sign to look, not yet a death.
  static Step hang_up(const Sight& sight);
};

/// Its connection has closed, its process may live, and its claims stand.
struct HungUp {
  Backoff looks{};  ///< at its mappings

  Step look(const Sight& sight);
};

/// Its process has ended, and children of it may live that never connected. Its page stays attached: an awaited child
/// counts as holding everything.
struct MaybeForked {
  bool is_visible;  ///< false in another pid namespace: its processes cannot be seen
  int times_gone = 0;

  /// Releases after two looks in a row: a child that forked and ended during one may have been missed.
  Step look(const Sight& sight);
};

using Stage = std::variant<Stranger, Borrower, HungUp, MaybeForked, UndeliveredItems>;

}  // namespace onecopy
