// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/backend.h"
#include "onecopy/share/handle_fields.h"
#include "os/fd.h"
#include "os/process.h"
#include "os/process_origin.h"
#include "share/borrower/channel_hooks.h"
#include "share/borrower/held_segment.h"

namespace onecopy {

/// Which segment: public name of its owner, and its number there.
using DepositKey = std::pair<std::string, std::uint32_t>;

/// Who has made a deposit, and may put more of it without another: a connection of our broker's; null: this process.
using Depositor = const void*;

/// A depositor's claim on what it has handed over. It lets go of all its claims up to a number: one that is made
/// meanwhile has a higher one.
struct DepositClaim {
  Depositor depositor = nullptr;
  std::uint64_t number = 0;
};

/// A deposit of ours that its keeper need not keep for us any more.
struct LetGo {
  DepositKey key;
  ProcessId keeper{};
  std::uint64_t number = 0;
};

/// Descriptors of other processes' segments, kept so that what is in our queues can be opened after
/// its owner has died. A deposit made for a queue is kept while its owner lives, a depositor has not let go of it,
/// or an item put before the end of these is still in that queue; and no longer than the owner has the segment. Of
/// devices' memory, which may come with thousands of descriptors, as much is kept as kMostOfDevices; the first that is
/// not is reported.
///
/// Thread safety: all members may be called concurrently.
class Deposits {
 public:
  static constexpr std::size_t kMostOfDevices = 256;  ///< descriptors

  /// Keeps a segment for `channel`. Without a claim it comes from its owner. False when it is not kept: no such
  /// channel is open here, or there are too many descriptors for it.
  bool add(const DepositKey& key, const ProcessOrigin& origin, Fd table, ExportedMemory memory,
           std::uint64_t channel, std::optional<DepositClaim> claim = {});
  std::optional<HeldSegment> open(const DepositKey& key, Access access) const;
  /// The depositor of these claims holds nothing of the segment any more.
  void let_go(const DepositKey& key, const DepositClaim& claims) noexcept;
  /// The depositor has closed the queue; or has ended.
  void leave(Depositor depositor, std::uint64_t channel) noexcept;
  void leave(Depositor depositor) noexcept;

  /// `keeper` keeps this segment for us, and is to hear of its end. Returns the number of our claim.
  std::uint64_t add_elsewhere(const DepositKey& key, const ProcessId& keeper);
  /// The owner has given the segment back, and so nothing in a queue lies in it. True when its keepers elsewhere
  /// have to hear of it. After a bad_alloc it is to be called again.
  bool retire(const DepositKey& key);
  /// What has been retired and is kept elsewhere, and by whom.
  std::map<DepositKey, std::set<ProcessId>> take_retired() noexcept;
  /// This process holds nothing of that owner's any more. True when keepers elsewhere have to hear of it.
  bool let_go_of(const std::string& owner) noexcept;
  std::vector<LetGo> take_let_go() noexcept;
  /// It could not be told.
  void let_go_later(LetGo again);

  /// A queue that is open here. `channel` is random and the same in every process.
  void add_channel(std::uint64_t channel, ChannelHooks hooks);
  void remove_channel(std::uint64_t channel) noexcept;
  /// How far a queue has come that is open here; nothing when it is not, or closed.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> progress(std::uint64_t channel) const;
  void report_users(std::uint64_t channel, std::uint8_t role, std::size_t users) const noexcept;

  /// Drops what is not needed any more. True while it takes further looks to see that: an item is waited for.
  bool sweep() noexcept;
  std::size_t size() const;

  // Around a fork; a child has nothing to keep.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void clear() noexcept;

 private:
  /// What one queue needs a deposit for.
  struct Use {
    std::map<Depositor, std::uint64_t> claims;  ///< with the number of each one's last
    /// How many items had been put when we saw that the owner was gone and no claim left.
    std::optional<std::uint64_t> put_at_end;
  };
  /// One for all segments of an owner.
  struct Owner {
    Fd pidfd;
    int pid;
    std::uint64_t table_inode;
    bool has_left = false;  ///< its program is no more, although its process lives

    bool is_gone() const noexcept { return !pidfd || has_exited(pidfd); }
    /// Reads /proc.
    bool look() noexcept;
  };
  struct Entry {
    std::shared_ptr<Owner> owner;
    std::shared_ptr<const Fd> table;  ///< one for all segments of an owner
    ExportedMemory memory;
    std::map<std::uint64_t, Use> channels;
    /// Of a named file: nothing but a user keeps its name. The last one removes it.
    std::unique_ptr<DeviceMemory> user = {};
  };

  bool has_room_for(const ExportedMemory& memory) const noexcept;
  std::shared_ptr<Owner> owner_of(const DepositKey& key, const ProcessOrigin& origin,
                                  const Fd& table) const;
  std::shared_ptr<const Fd> table_of(const DepositKey& key, Fd sent) const;
  bool drop_passed(Entry& entry);
  static bool is_claimed(const Entry& entry) noexcept;

  mutable std::mutex mutex_;
  std::map<DepositKey, Entry> entries_;
  std::map<DepositKey, std::map<ProcessId, std::uint64_t>>
      elsewhere_;  ///< with the number of our last claim
  std::uint64_t last_number_ = 0;
  std::vector<LetGo> let_go_;                          ///< what the keepers have not heard of
  std::map<DepositKey, std::set<ProcessId>> retired_;  ///< of those, what the keepers have not heard of
  std::map<std::uint64_t, ChannelHooks> channels_;
  bool refused_ = false;
  /// When owners that live are looked at again: have their programs become others?
  std::chrono::steady_clock::time_point next_look_{};
};

}  // namespace onecopy
