// SPDX-License-Identifier: Apache-2.0
#pragma once

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

#include "onecopy/device/backend.h"
#include "onecopy/os/fd.h"
#include "onecopy/share/handle_fields.h"
#include "share/held_segment.h"
#include "share/process_origin.h"

namespace onecopy {

/// Which segment: public name of its owner, and its number there.
using DepositKey = std::pair<std::string, std::uint32_t>;

/// A queue as the share layer sees it. Both functions are called on the watch thread and must not
/// throw.
struct ChannelHooks {
  /// How far the queue has come: items ever put, items ever taken. Nothing when it is closed.
  std::function<std::optional<std::pair<std::uint64_t, std::uint64_t>>()> progress;
  /// In the queue's creator: how many other processes have it open in this role, at each change.
  std::function<void(std::uint8_t role, std::size_t users)> users;
};

/// Descriptors of other processes' segments, kept so that what is in our queues can be opened after
/// its owner has died. A deposit made for a queue is kept while its owner lives or an item put before
/// the death is still in that queue, and no longer than the owner has the segment. Of devices' memory, which
/// may come with thousands of descriptors, as much is kept as kMostOfDevices; the first that is not is reported.
///
/// Thread safety: all members may be called concurrently.
class Deposits {
 public:
  static constexpr std::size_t kMostOfDevices = 256;  ///< descriptors

  /// Keeps a segment for `channel`; without effect when no such channel is known here. False when there are
  /// too many descriptors for it.
  bool add(const DepositKey& key, const ProcessOrigin& origin, Fd table, ExportedMemory memory,
           std::uint64_t channel);
  std::optional<HeldSegment> open(const DepositKey& key, Access access) const;

  /// `keeper` keeps this segment for us, and is to hear of its end.
  void add_elsewhere(const DepositKey& key, const ProcessId& keeper);
  /// The owner has given the segment back, and so nothing in a queue lies in it. True when its keepers elsewhere
  /// have to hear of it.
  bool retire(const DepositKey& key) noexcept;
  /// That owner is gone, and retires nothing any more.
  void forget_elsewhere(const std::string& owner) noexcept;
  /// What has been retired and is kept elsewhere, and by whom.
  std::map<DepositKey, std::set<ProcessId>> take_retired() noexcept;

  /// A queue that is open here. `channel` is random and the same in every process.
  void add_channel(std::uint64_t channel, ChannelHooks hooks);
  void remove_channel(std::uint64_t channel) noexcept;
  /// How far a queue has come that is open here; nothing when it is not, or closed.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> progress(std::uint64_t channel) const;
  void report_users(std::uint64_t channel, std::uint8_t role, std::size_t users) const noexcept;

  /// Drops what is not needed any more. True while a dead owner's segments are being kept.
  bool sweep() noexcept;
  std::size_t size() const;

  // Around a fork; a child has nothing to keep.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void clear() noexcept;

 private:
  struct Entry {
    ProcessOrigin origin;
    std::shared_ptr<const Fd> pidfd;  ///< one for all segments of an owner
    Fd table;
    ExportedMemory memory;
    std::map<std::uint64_t, std::optional<std::uint64_t>> channels;  ///< put count at the death
    /// Of a named file: nothing but a user keeps its name. The last one removes it.
    std::unique_ptr<DeviceMemory> user = {};
  };

  bool has_room_for(const ExportedMemory& memory) const noexcept;
  std::shared_ptr<const Fd> pidfd_of(const DepositKey& key, const ProcessOrigin& origin) const;
  bool is_awaited(Entry& entry);

  mutable std::mutex mutex_;
  std::map<DepositKey, Entry> entries_;
  std::map<DepositKey, std::set<ProcessId>> elsewhere_;
  std::map<DepositKey, std::set<ProcessId>> retired_;  ///< of those, what the keepers have not heard of
  std::map<std::uint64_t, ChannelHooks> channels_;
  bool refused_ = false;
};

}  // namespace onecopy
