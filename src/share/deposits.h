// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "onecopy/device/backend.h"
#include "onecopy/os/fd.h"
#include "share/process_origin.h"

namespace onecopy {

/// Which segment: public name of its owner, and its number there.
using DepositKey = std::pair<std::string, std::uint32_t>;

/// Descriptors of other processes' segments, kept so that what is in our queues can be opened after
/// its owner has died. A deposit made for a queue is kept while its owner lives or an item put before
/// the death is still in that queue.
///
/// Thread safety: all members may be called concurrently.
class Deposits {
 public:
  struct Opened {
    Fd table;
    ExportedMemory memory;
    bool owner_gone = false;
  };
  /// How far a queue has come: items ever put, items ever taken. Nothing when the queue is closed.
  using Progress = std::function<std::optional<std::pair<std::uint64_t, std::uint64_t>>()>;

  /// Keeps a segment for `channel`; without effect when no such channel is known here.
  void add(const DepositKey& key, const ProcessOrigin& origin, Fd table, ExportedMemory memory,
           std::uint64_t channel);
  std::optional<Opened> open(const DepositKey& key, Access access) const;

  /// A queue that is open here. `channel` is random and the same in every process.
  void add_channel(std::uint64_t channel, Progress progress);
  void remove_channel(std::uint64_t channel) noexcept;

  /// Drops what is not needed any more. True while a dead owner's segments are being kept.
  bool sweep() noexcept;
  std::size_t size() const;

  // Around a fork; a child has nothing to keep.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void clear() noexcept { entries_.clear(); }

 private:
  struct Entry {
    ProcessOrigin origin;
    Fd pidfd;
    Fd table;
    ExportedMemory memory;
    std::map<std::uint64_t, std::optional<std::uint64_t>> channels;  ///< put count at the death
  };

  bool is_gone(const Entry& entry) const noexcept;
  bool is_needed(Entry& entry);

  mutable std::mutex mutex_;
  std::map<DepositKey, Entry> entries_;
  std::map<std::uint64_t, Progress> channels_;
};

}  // namespace onecopy
