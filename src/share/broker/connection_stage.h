// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <variant>

#include "os/backoff.h"
#include "share/borrower/retained_segments.h"
#include "share/owner/claim_memory.h"

namespace onecopy {

/// The time that a block of a dead process's item stays held after the item was taken. The receiver may still be
/// reading the item. Tests lower it.
inline std::atomic<int> after_transit_ms{5'000};

/// Blocks of a dead borrower's items that are still in queues. The borrower's claim page holds the blocks until their
/// receivers have them.
///
/// Thread safety: used by one thread, but for blocks() and age(), which any thread may call.
class UndeliveredItems {
 public:
  using Clock = std::chrono::steady_clock;

  UndeliveredItems(std::size_t blocks, const TransitCounts& transits);

  std::size_t blocks() const noexcept { return blocks_; }
  std::chrono::duration<double> age() const noexcept { return Clock::now() - since_; }
  /// Returns whether the receivers have all blocks, or have had the time. The borrower has noted its queues; queues
  /// that are open here tell how far they have come.
  bool are_delivered(const LocalQueues& queues);

 private:
  const std::size_t blocks_;
  const Clock::time_point since_ = Clock::now();
  bool knows_queues_ = false;
  /// The queues whose items are not all taken yet, with the ends that they had at the first look.
  std::map<std::uint64_t, QueueMark> waiting_for_;
  std::optional<Clock::time_point> taken_;  ///< since when all items are taken
};

// The stages of a borrower's connection, and the steps from one to the next. Nothing here knows a socket or a process:
// the Broker reports events, and carries out the step.

/// The Broker's view of a connection.
struct Sight {
  std::chrono::steady_clock::time_point now;
  bool has_spoken = false;  ///< messages wait to be read
  bool has_pidfd = true;    ///< then the end of its process is an event
  bool has_exited = false;
  bool has_device_memory = false;     ///< a device may still be at work for it when its mappings are gone
  std::function<bool()> maps_page{};  ///< takes long: asked only when it is due
  std::optional<bool> may_have_children{};  ///< that never connected; empty if it was not time to look
};

enum class Step : std::uint8_t {
  wait,        ///< an event reports the next step, or nothing ever does
  look_again,  ///< only another look will tell
  end,         ///< its process has ended
  release,     ///< its claims fall, except the claims of items in queues
  drop,        ///< nothing is left of it
};

/// Has not proved yet that it holds a handle.
struct Stranger {
  bool is_challenged = false;  ///< its proof is on its way
  /// The time since which its messages are read. The packets may have waited before, for a watch thread that was late.
  std::optional<std::chrono::steady_clock::time_point> heard_since{};

  Step look(const Sight& sight, std::chrono::milliseconds silence);
};

/// Has a claim page. A forked child's connection begins here.
struct Borrower {
  /// The connection has closed, which is a sign to look, not yet a death.
  static Step hang_up(const Sight& sight);
};

/// The connection has closed, the process may live, and the claims stand.
struct HungUp {
  Backoff looks{};  ///< at its mappings

  Step look(const Sight& sight);
};

/// The process has ended, and children of it may live that never connected. The page stays attached: an awaited child
/// counts as holding everything.
struct MaybeForked {
  bool is_visible;  ///< false in another pid namespace: its processes cannot be seen
  int times_gone = 0;

  /// Releases after two looks in a row: a child that forked and ended during one may have been missed.
  Step look(const Sight& sight);
};

using Stage = std::variant<Stranger, Borrower, HungUp, MaybeForked, UndeliveredItems>;

}  // namespace onecopy
