// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "channel/codec/item.h"
#include "channel/codec/segment_directory.h"
#include "onecopy/memory/tensor.h"
#include "os/mutex.h"
#include "share/session.h"

namespace onecopy {

/// The entry of the directory that was looked up last, for readers that take no lock.
/// Thread safety: find() may be called by any thread, remember() by one thread at a time.
class LastLookup {
 public:
  std::optional<std::uint16_t> find(std::uint64_t group, std::uint32_t segment, Access access,
                                    std::uint32_t epoch) const noexcept {
    const std::uint32_t version = version_.load();
    const bool same = group_.load() == group && segment_.load() == segment && access_.load() == access &&
                      epoch_.load() == epoch;
    const std::uint16_t index = index_.load();
    if (!same || (version & 1) != 0 || version_.load() != version) return std::nullopt;
    return index;
  }
  void remember(std::uint64_t group, std::uint32_t segment, Access access, std::uint32_t epoch,
                std::uint16_t index) noexcept {
    version_.fetch_add(1);
    group_.store(group);
    segment_.store(segment);
    access_.store(access);
    epoch_.store(epoch);
    index_.store(index);
    version_.fetch_add(1);
  }
  void forget() noexcept { remember(0, 0, Access::read_only, 0, 0); }

 private:
  std::atomic<std::uint32_t> version_{0};  ///< odd while the other fields are being written
  std::atomic<std::uint64_t> group_{0};    ///< the group's serial()
  std::atomic<std::uint32_t> segment_{0};
  std::atomic<Access> access_{Access::read_only};
  std::atomic<std::uint16_t> index_{0};
  std::atomic<std::uint32_t> epoch_{0};
};

/// The indices, in a queue's directory, of the segments of tensors that this process puts. A segment without an index
/// is entered into the directory, and the queue's creator is asked once to retain it.
///
/// Thread safety: all members may be called concurrently.
/// Invariant: unkept() counts the known segments that the creator does not retain.
class SegmentLookup {
 public:
  /// The limits of a lookup.
  struct Limits {
    Deadline deadline;
    bool may_ask = true;  ///< whether the creator may be asked
  };

  SegmentLookup(Ring& ring, SegmentDirectory& directory, const ProcessId& creator) noexcept
      : ring_(ring), directory_(directory), creator_(creator) {}

  const SegmentDirectory& directory() const noexcept { return directory_; }
  /// Returns the index of the tensor's segment, in `epoch` or in the epoch that this call has begun; kWholeHandle if
  /// the directory has no room; empty if the creator would have to be asked and may not. Throws as Ring::exclusively()
  /// does. REQUIRES: `group` is shared_blocks() of the tensor, `segment` its segment.
  std::optional<std::uint16_t> index_of(Session& session, const Tensor& tensor, SharedBlocks& group,
                                        std::uint32_t segment, const Limits& limits, std::uint32_t epoch);

  /// Returns the number of known segments that the creator does not retain.
  std::uint64_t unkept() const noexcept { return unkept_.load(std::memory_order_relaxed); }

  // The fork handlers call the following members. A forked child forgets its parent's requests.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  void reset() noexcept;

 private:
  /// The group's serial(), the segment, and the access with which it is put.
  using Key = std::tuple<std::uint64_t, std::uint32_t, Access>;
  /// A flag that is true once the connection to the creator has ended.
  using ConnectionEnd = std::shared_ptr<const std::atomic<bool>>;
  struct CachedSegment {
    std::uint16_t index = kWholeHandle;      ///< the segment's index in the directory
    std::uint32_t epoch = UINT32_MAX;        ///< the epoch of that index
    bool is_unkept = false;                  ///< unkept() counts the segment
    TimePoint ask_again = TimePoint::max();  ///< when to ask the creator again, unless it is still silent
    bool is_settled() const noexcept { return ask_again == TimePoint::max(); }
  };

  bool has_index(const CachedSegment& known, std::uint32_t epoch) const noexcept;
  std::optional<CachedSegment> find_known(const Key& key);
  void remember(const Key& key, const CachedSegment& known);
  void forget_most() noexcept REQUIRES(mutex_);
  void remember_last(const Key& key, const CachedSegment& known) noexcept REQUIRES(mutex_);
  void rely_on_creator(Session& session);
  bool has_lost_creator() const noexcept;
  void doubt_retention() noexcept;
  bool must_ask(Session& session, const CachedSegment& known) const;
  void ask_creator(Session& session, const Tensor& tensor, SegmentKind kind, CachedSegment& known);
  void enter(const SegmentRef& segment, Access access, Deadline deadline, CachedSegment& known);

  Ring& ring_;
  SegmentDirectory& directory_;
  const ProcessId creator_;
  Mutex mutex_;
  std::map<Key, CachedSegment> known_ GUARDED_BY(mutex_);
  LastLookup last_;  ///< contains settled segments only; written under mutex_
  /// The connection over which the creator was asked to retain settled segments; null if the creator retains nothing
  /// for us.
  std::atomic<const std::atomic<bool>*> relied_on_{nullptr};
  /// Keeps all connections to which relied_on_ has pointed.
  std::vector<ConnectionEnd> relied_on_once_ GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> unkept_{0};
};

}  // namespace onecopy
