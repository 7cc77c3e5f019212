// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "channel/codec/item.h"
#include "channel/codec/segment_directory.h"
#include "onecopy/core/bytes.h"
#include "onecopy/memory/tensor.h"
#include "os/mutex.h"
#include "share/session.h"

namespace onecopy {

/// Returns what is sent in place of the tensors, if some of them are not sent themselves, see sendable(); empty if all are.
inline std::vector<Tensor> replacements(std::span<const Tensor> leaving) {
  std::vector<Tensor> others;
  if (std::ranges::all_of(leaving, is_sendable)) [[likely]]
    return others;
  std::ranges::transform(leaving, std::back_inserter(others), sendable);
  return others;
}

/// The tensors of one item that is being put, and the streams whose order they follow. Each put makes one Departure at
/// its beginning.
struct Departure {
  Departure(Session& session, std::span<const Tensor> leaving, Stream in)
      : replaced(replacements(leaving)),
        tensors(replaced.empty() ? leaving : replaced),
        stream(in),
        needs_order(!session.streams().used_devices().empty() ||
                    std::any_of(leaving.begin(), leaving.end(),
                                [](const Tensor& tensor) { return tensor.device() != kCpu; })) {}

  Departure& operator=(Departure&&) = delete;

  const std::vector<Tensor> replaced;
  const std::span<const Tensor> tensors;
  Stream stream;
  /// Tells whether getters may have to wait for a stream, because a tensor is on a device or this process has used a
  /// device.
  bool needs_order;
};

/// The row of one tensor, and the block that it names.
struct ManifestRow {
  /// Describes the tensor in the block `at`, whose segment has the index `segment`.
  ManifestRow(std::uint16_t segment, const MappedBlock& at, const Tensor& tensor)
      : row{at.info.generation, static_cast<std::uint64_t>(tensor.as<std::byte>() - at.data),
            at.info.number,     segment,
            tensor.layout(),    {}},
        block_size(at.info.size) {}

  ItemRow row;
  std::uint64_t block_size;
  Bytes handle;  ///< owns the bytes of row.handle
};

/// The names of one item's tensors as another process reads them: a row for each tensor, and the order that the
/// getter's streams must keep.
///
/// Thread safety: none of its own.
class Manifest {
 public:
  using Row = ManifestRow;

  /// Constructs a manifest for `rows` tensors, whose segments are looked up in `epoch` of the directory.
  Manifest(std::uint32_t epoch, std::size_t rows) : epoch_(epoch), has_one_(rows == 1) {
    if (!has_one_) many_.reserve(rows);
  }

  /// Adds a row, constructed from `parts`. REQUIRES: called at most `rows` times.
  template <class... Parts>
  Row& add(const Parts&... parts) {
    return has_one_ ? one_.emplace(parts...) : many_.emplace_back(parts...);
  }
  std::span<const Row> rows() const noexcept {
    return one_ ? std::span(&*one_, 1) : std::span<const Row>(many_);
  }
  /// Returns the epoch. The rows are valid only in an item that is put in this epoch.
  std::uint32_t epoch() const noexcept { return epoch_; }

  ItemOrder order;

  /// Returns the number of bytes that write() writes.
  std::size_t bytes() const noexcept;
  /// Writes rows and order in the form of an item, and returns their end.
  std::byte* write(std::byte* out) const noexcept;

 private:
  std::uint32_t epoch_;
  bool has_one_;
  std::optional<Row> one_;  ///< a single row, which takes no memory of its own
  std::vector<Row> many_;
};

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

/// Names tensors for the getters of one queue. Knows the indices, in the queue's directory, of the segments of tensors
/// that this process puts. A segment without an index is entered into the directory, and the queue's creator is asked
/// once to retain it.
///
/// Thread safety: all members may be called concurrently.
/// Invariant: unkept() counts the known segments that the creator does not retain.
class TensorPacker {
 public:
  /// The limits of a lookup.
  struct Limits {
    Deadline deadline;
    bool may_ask = true;  ///< whether the creator may be asked
  };

  TensorPacker(Ring& ring, SegmentDirectory& directory, const ProcessId& creator) noexcept
      : ring_(ring), directory_(directory), creator_(creator) {}

  /// Names the tensors in the directory's present epoch. A getter's streams wait for the work that is in the
  /// departure's stream now. Returns nothing if the queue's creator would have to be asked and may not. Throws
  /// invalid_argument for memory of another library, and for tensors on two devices with a stream of one.
  std::optional<Manifest> pack(Session& session, const Departure& departure, const Limits& limits);
  /// Does what pack() does, in no stream and in an epoch that the caller has read.
  std::optional<Manifest> pack_unordered(Session& session, std::span<const Tensor> tensors,
                                         const Limits& limits, std::uint32_t epoch);
  /// Asks the creator the questions that pack() of the tensors would ask. Throws as pack() does.
  void prepare(Session& session, std::span<const Tensor> tensors, Deadline deadline);

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

  bool add(Session& session, const Tensor& tensor, const Limits& limits, Manifest& manifest);
  std::optional<std::uint16_t> index_of(Session& session, const Tensor& tensor, const LocatedBlock& at,
                                        const Limits& limits, std::uint32_t epoch);
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
  void enter(const SegmentOrigin& segment, Access access, Deadline deadline, CachedSegment& known);

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
