// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "channel/codec/item.h"
#include "channel/codec/segment_directory.h"
#include "channel/codec/tensor_order.h"
#include "os/mapping.h"
#include "os/mutex.h"
#include "share/session.h"

namespace onecopy {

/// Claims and opens the tensors that the rows of one queue's items name. Segments stay open from one item to the next.
///
/// Thread safety: all members may be called concurrently, but for reset().
class TensorUnpacker {
 public:
  /// The processes to ask for memory that neither an item's owner nor its putter has: the queue's creator, and the
  /// process whose handle named the queue.
  using Holders = std::array<ProcessId, 2>;

  TensorUnpacker(const SegmentDirectory& directory, const Holders& holders);

  /// Takes all rows and the order from the reader. Throws bad_handle, and what open() throws.
  void unpack(Session& session, ItemReader& item, UnpackedTensors& tensors);
  /// Unpacks without asking another process. Returns false as soon as a row would need a question.
  bool try_unpack(Session& session, ItemReader& item, UnpackedTensors& tensors);

  // The fork handlers call the following members.
  void lock() ACQUIRE(owners_mutex_) { owners_mutex_.lock(); }
  void unlock() RELEASE(owners_mutex_) { owners_mutex_.unlock(); }
  /// Forgets the peers of the parent, and names the parent as a holder. REQUIRES: this is a forked child.
  void reset(const ProcessId& parent) NO_THREAD_SAFETY_ANALYSIS;

 private:
  using BlocksRef = std::shared_ptr<const BorrowedBlocks>;

  template <class Open>
  static bool read(ItemReader& item, UnpackedTensors& tensors, Open&& open);
  Tensor try_open(Session& session, const ItemRow& row);
  Tensor open(Session& session, const ItemRow& row);
  Tensor open_entry(Session& session, const ItemRow& row);
  void keep(std::uint16_t index, BlocksRef owner);
  void take_ended() REQUIRES(owners_mutex_);
  OpenSegment& open_segment(std::uint16_t index) const noexcept {
    return open_segments_.as<OpenSegment>()[index];
  }

  static constexpr std::size_t kManyOwners = 64;
  class ReaderGuard;

  const SegmentDirectory& directory_;
  Holders holders_;
  Mapping open_segments_;  ///< the open segments, by index in the directory
  using Owners = std::unordered_map<std::uint16_t, BlocksRef>;

  Mutex owners_mutex_;
  /// The owners of open segments, by index.
  Owners owners_ GUARDED_BY(owners_mutex_);
  /// The number of owners at which ended ones are looked for.
  std::size_t owners_limit_ GUARDED_BY(owners_mutex_) = kManyOwners;
  std::vector<BlocksRef> ended_ GUARDED_BY(owners_mutex_);  ///< owners that a thread may still be reading
  /// The number of threads in try_open(), which use owners by bare pointers. An owner without a segment is dropped when
  /// the number is 0.
  std::atomic<int> readers_{0};
};

}  // namespace onecopy
