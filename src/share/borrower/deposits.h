// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/backend.h"
#include "onecopy/share/handle_fields.h"
#include "os/event_loop.h"
#include "os/fd.h"
#include "os/mutex.h"
#include "os/process.h"
#include "os/process_origin.h"
#include "share/borrower/channel_hooks.h"
#include "share/borrower/held_segment.h"

namespace onecopy {

/// Names a segment: public name of its owner, and its number there.
using DepositKey = std::pair<std::string, std::uint32_t>;

/// The maker of a deposit: a connection of our broker's, or null for this process. It may put more items of the
/// segment without another deposit.
using Depositor = const void*;

/// A depositor's claim on the segment that it handed over. The depositor lets go of all its claims up to a number; a
/// claim made meanwhile has a higher one.
struct DepositClaim {
  Depositor depositor = nullptr;
  std::uint64_t number = 0;
};

/// A deposit of ours that its keeper need not retain for us any more.
struct LetGo {
  DepositKey key;
  ProcessId keeper{};
  std::uint64_t number = 0;
};

/// Descriptors of other processes' segments, retained so that items in our queues can be opened after the segment's
/// owner has died.
///
/// A deposit for a queue is kept while its owner lives, or while its depositor has not let go of it. After both it is
/// kept while an item put before that is still in the queue. It never outlives the segment at its owner.
///
/// A segment of a device may come with thousands of descriptors; at most kMostOfDevices of those are kept in all, and
/// the first that is refused is reported.
///
/// Thread safety: all members may be called concurrently.
class Deposits {
 public:
  static constexpr std::size_t kMostOfDevices = 256;  ///< descriptors

  /// Called when sweep() may find something to drop. Must not call back.
  std::function<void()> on_due;
  /// Called (without locks) when keepers in other processes have something to hear.
  std::function<void()> on_news;
  /// The ends of owners are noticed from here on. Before the first deposit.
  void watch(EventLoop& loop) noexcept { loop_ = &loop; }

  /// Keeps a segment for `channel`. Without a claim it comes from its owner. Returns false if it is not kept: the
  /// channel is not open here, or its descriptors are too many.
  bool add(const DepositKey& key, const ProcessOrigin& origin, Fd table, ExportedMemory memory,
           std::uint64_t channel, std::optional<DepositClaim> claim = {});
  std::optional<HeldSegment> open(const DepositKey& key, Access access) const;
  /// The depositor of these claims holds nothing of the segment any more.
  void let_go(const DepositKey& key, const DepositClaim& claims) noexcept;
  /// The depositor has closed the queue; or has ended.
  void leave(Depositor depositor, std::uint64_t channel) noexcept;
  void leave(Depositor depositor) noexcept;

  /// `keeper` retains this segment for us, and must hear of its end. Returns the number of our claim.
  std::uint64_t add_elsewhere(const DepositKey& key, const ProcessId& keeper);
  /// The owner has given the segment back, so no item in a queue lies in it. Call it again after a bad_alloc.
  void retire(const DepositKey& key);
  /// As retire(), but returns true where that calls on_news.
  bool note_retired(const DepositKey& key);
  /// Takes the segments that were retired, each with the processes that retain it.
  std::map<DepositKey, std::set<ProcessId>> take_retired() noexcept;
  /// This process holds no block of that owner's any more.
  void let_go_of(const std::string& owner) noexcept;
  std::vector<LetGo> take_let_go() noexcept;
  /// The keeper could not be told; it is told later.
  void let_go_later(LetGo again);

  /// A queue that is open here. `channel` is random and the same in every process.
  void add_channel(std::uint64_t channel, ChannelHooks hooks);
  void remove_channel(std::uint64_t channel) noexcept;
  /// How far a queue that is open here has come; empty if it is not open, or closed.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> progress(std::uint64_t channel) const;
  void report_users(std::uint64_t channel, std::uint8_t role, std::size_t users) const noexcept;

  /// Drops deposits that are not needed any more. Returns true while more looks are due: an item is waited for.
  bool sweep() noexcept;
  std::size_t size() const;

  // Around a fork; a child has nothing to keep.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  void clear() noexcept NO_THREAD_SAFETY_ANALYSIS;

 private:
  /// The need of one queue for a deposit.
  struct Use {
    std::map<Depositor, std::uint64_t> claims;  ///< with the number of each one's last
    /// How many items had been put when the owner was first seen gone with no claim left.
    std::optional<std::uint64_t> put_at_end;
  };
  /// One for all segments of an owner.
  struct Owner {
    Fd pidfd;
    int pid;
    std::uint64_t table_inode;
    EventLoop* loop;        ///< that watches the pidfd; null if none does
    bool has_left = false;  ///< its program has ended, although its process lives

    ~Owner() {
      if (loop && pidfd) loop->remove(pidfd.get());
    }

    bool is_gone() const noexcept { return !pidfd || has_exited(pidfd); }
    /// Reads /proc.
    bool look() noexcept;
  };
  struct Entry {
    std::shared_ptr<Owner> owner;
    std::shared_ptr<const Fd> table;  ///< one for all segments of an owner
    ExportedMemory memory;
    std::map<std::uint64_t, Use> channels;
    /// Of a named file: removes the name with its last user. Without this user the name would go.
    std::unique_ptr<DeviceMemory> user = {};
  };

  bool has_room_for(const ExportedMemory& memory) const noexcept REQUIRES(mutex_);
  std::shared_ptr<Owner> owner_of(const DepositKey& key, const ProcessOrigin& origin, const Fd& table)
      REQUIRES(mutex_);
  void look_soon() noexcept REQUIRES(mutex_);
  std::shared_ptr<const Fd> table_of(const DepositKey& key, Fd sent) const REQUIRES(mutex_);
  bool drop_passed(Entry& entry) REQUIRES(mutex_);
  static bool is_claimed(const Entry& entry) noexcept;

  EventLoop* loop_ = nullptr;
  mutable Mutex mutex_;
  std::map<DepositKey, Entry> entries_ GUARDED_BY(mutex_);
  std::map<DepositKey, std::map<ProcessId, std::uint64_t>> elsewhere_
      GUARDED_BY(mutex_);  ///< with the number of our last claim
  std::uint64_t last_number_ GUARDED_BY(mutex_) = 0;
  std::vector<LetGo> let_go_ GUARDED_BY(mutex_);  ///< notices that keepers have not heard yet
  /// Retired segments whose keepers have not heard of it yet.
  std::map<DepositKey, std::set<ProcessId>> retired_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, ChannelHooks> channels_ GUARDED_BY(mutex_);
  bool refused_ GUARDED_BY(mutex_) = false;
  /// When live owners are looked at again: a process may have become another program.
  std::chrono::steady_clock::time_point next_look_ GUARDED_BY(mutex_){};
};

}  // namespace onecopy
