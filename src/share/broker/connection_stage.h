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

/// The time that a block of a dead process's item stays held after the item was taken, because the receiver may still
/// be reading the item. Tests lower it.
inline std::atomic<int> after_transit_ms{5'000};

/// The blocks of a dead borrower's items that are still in queues. The borrower's claim page holds the blocks until
/// their receivers have them.
///
/// Thread safety: used by one thread, but for blocks() and age(), which any thread may call.
class UndeliveredItems {
 public:
  using Clock = std::chrono::steady_clock;

  explicit UndeliveredItems(const TransitCounts& transits);

  /// Notes the number of blocks of the items. A new object has none.
  void set_blocks(std::size_t blocks) noexcept { blocks_ = blocks; }

  std::size_t blocks() const noexcept { return blocks_; }
  std::chrono::duration<double> age() const noexcept { return Clock::now() - since_; }
  /// Returns whether the receivers have all blocks, or have had enough time to claim them. The borrower has noted its
  /// queues, and queues that are open here report their progress.
  bool are_delivered(const LocalQueues& queues);

 private:
  std::size_t blocks_ = 0;
  Clock::time_point since_ = Clock::now();
  bool knows_queues_ = false;
  /// The queues of which not all items have been taken, with their ends at the first look.
  std::map<std::uint64_t, QueueMark> waiting_for_;
  std::optional<Clock::time_point> taken_;  ///< the time since which all items have been taken
};

// The stages of a borrower's connection, and the steps from one to the next. The stages use no socket or process: the
// Broker reports events and carries out the steps.

/// The facts about a connection that decide its next step.
struct Sight {
  std::chrono::steady_clock::time_point now;
  bool has_spoken = false;  ///< there are unread messages
  bool has_pidfd = true;    ///< if so, the end of the process is an event
  bool has_exited = false;
  /// A device may still be at work for the process when its mappings are gone.
  bool has_device_memory = false;
  std::function<bool()> maps_page{};  ///< takes long, so it is called only when it is due
  /// Says whether there may be children that never connected; empty if it was too early to look.
  std::optional<bool> may_have_children{};
};

enum class Step : std::uint8_t {
  wait,        ///< wait for an event, which may never come
  look_again,  ///< look again later
  end,         ///< the process has ended
  release,     ///< end its claims, except on blocks of items in queues
  drop,        ///< remove the connection
};

/// A process that has not yet proved that it holds a handle.
struct Stranger {
  /// The time of the first look at the connection. Packets may have waited before that, if the watch thread was late.
  std::optional<std::chrono::steady_clock::time_point> heard_since{};

  Step poll(const Sight& sight, std::chrono::milliseconds silence);
};

/// A process with a claim page. A forked child's connection begins in this stage.
struct Borrower {
  /// Returns the step after the connection has closed, which is a reason to look but not yet a death.
  static Step hang_up(const Sight& sight);
};

/// A borrower whose connection has closed, whose process may live, and whose claims still count.
struct HungUp {
  Backoff looks{};  ///< the pauses between looks at its mappings

  Step poll(const Sight& sight);
};

/// A borrower whose process has ended, and of which children may live that never connected. The page stays attached,
/// because an awaited child counts as holding all blocks.
struct MaybeForked {
  bool is_visible;  ///< false in another pid namespace, whose processes cannot be seen
  int times_gone = 0;

  /// Returns `release` after two successive looks without a child, because a child that forked and ended during one
  /// look may have been missed.
  Step poll(const Sight& sight);
};

using Stage = std::variant<Stranger, Borrower, HungUp, MaybeForked, UndeliveredItems>;

}  // namespace onecopy
