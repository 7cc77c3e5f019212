// SPDX-License-Identifier: Apache-2.0
#include "channel/codec/tensor_unpacker.h"

#include <algorithm>
#include <utility>

#include "onecopy/core/error.h"

namespace onecopy {
namespace {

/// Returns the end of the row's tensor, in bytes from the start of its block.
std::uint64_t reach_of(const ItemRow& row) {
  std::uint64_t end = 0;
  if (__builtin_add_overflow(row.tensor_offset, row.layout.extent_bytes(), &end) || end > INT64_MAX)
    throw Error(ErrorCode::bad_handle, "a tensor in this queue reaches beyond any memory");
  return end;
}

HandleFields fields_of(const ItemRow& row, const SegmentDirectory::Entry& entry) {
  HandleFields fields{entry.segment};
  fields.block = row.block;
  fields.generation = row.generation;
  fields.storage_size = reach_of(row);
  fields.tensor_offset = row.tensor_offset;
  fields.flags = entry.access == Access::read_only ? kHandleIsReadOnly : 0;
  fields.layout = row.layout;
  return fields;
}

}  // namespace

class TensorUnpacker::ReaderGuard {
 public:
  explicit ReaderGuard(std::atomic<int>& readers) noexcept : readers_(readers) { readers_.fetch_add(1); }
  ~ReaderGuard() { readers_.fetch_sub(1, std::memory_order_release); }
  ReaderGuard& operator=(ReaderGuard&&) = delete;

 private:
  std::atomic<int>& readers_;
};

TensorUnpacker::TensorUnpacker(const SegmentDirectory& directory, const Holders& holders)
    : directory_(directory),
      holders_(holders),
      open_segments_(Mapping::anonymous(SegmentDirectory::kIndices * sizeof(OpenSegment))) {}

void TensorUnpacker::reset(const ProcessId& parent) {
  holders_[1] = parent;
  open_segments_ = Mapping::anonymous(SegmentDirectory::kIndices * sizeof(OpenSegment));
  owners_.clear();
  ended_.clear();
  readers_ = 0;  // the threads of the parent
}

void TensorUnpacker::unpack(Session& session, ItemReader& item, UnpackedTensors& tensors) {
  read(item, tensors, [&](const ItemRow& row) { return open(session, row); });
}

bool TensorUnpacker::try_unpack(Session& session, ItemReader& item, UnpackedTensors& tensors) {
  const ReaderGuard here(readers_);
  return read(item, tensors, [&](const ItemRow& row) { return try_open(session, row); });
}

/// Opens all tensors by `open`. Returns false as soon as one of them does not open.
template <class Open>
bool TensorUnpacker::read(ItemReader& item, UnpackedTensors& tensors, Open&& open) {
  for (std::size_t i = 0; i < item.head().rows; ++i) {
    Tensor tensor = open(item.next_row());
    if (!tensor) return false;
    tensors.add(std::move(tensor));
  }
  tensors.order = item.order();
  return true;
}

Tensor TensorUnpacker::try_open(Session& session, const ItemRow& row) {
  if (row.segment == kWholeHandle) return {};
  return session.try_open(open_segment(row.segment), directory_.epoch_of(row.segment),
                          {row.block, row.generation}, row.tensor_offset, reach_of(row), row.layout);
}

Tensor TensorUnpacker::open(Session& session, const ItemRow& row) {
  if (row.segment == kWholeHandle) {
    const HandleFields fields = decode_handle(row.handle);
    return session.open(fields, fields.is_read_only() ? Access::read_only : Access::read_write, holders_);
  }
  {
    const ReaderGuard here(readers_);
    if (Tensor tensor = try_open(session, row)) return tensor;
  }
  return open_entry(session, row);
}

Tensor TensorUnpacker::open_entry(Session& session, const ItemRow& row) {
  const SegmentDirectory::Entry entry = directory_.read(row.segment);
  const HandleFields fields = fields_of(row, entry);
  Tensor tensor = session.open(fields, entry.access, holders_);
  keep(row.segment, session.note(open_segment(row.segment), entry.epoch, fields, entry.access,
                                 tensor.device(), holders_));
  return tensor;
}

/// Keeps the owner of the segment with this index; null for memory of this process, which stays. Also drops owners that
/// have ended, so that they do not pile up in a process that gets from a queue for months.
void TensorUnpacker::keep(std::uint16_t index, BlocksRef owner) {
  std::vector<BlocksRef> released;  // destroyed without the lock
  const LockGuard lock(owners_mutex_);
  ended_.reserve(ended_.size() + 1);
  if (BlocksRef& kept = owners_[index]; kept != owner) {
    kept.swap(owner);
    if (owner) ended_.push_back(std::move(owner));
  }
  if (owners_.size() >= owners_limit_) take_ended();
  if (!ended_.empty() && readers_.load() == 0) released.swap(ended_);
}

void TensorUnpacker::take_ended() {
  ended_.reserve(ended_.size() + owners_.size());
  for (auto at = owners_.begin(); at != owners_.end();) {
    BlocksRef& owner = at->second;
    if (owner && !Session::is_closed(*owner)) {
      ++at;
      continue;
    }
    if (owner) {
      open_segment(at->first).close();
      ended_.push_back(std::move(owner));
    }
    at = owners_.erase(at);
  }
  owners_limit_ = std::max(kManyOwners, 2 * owners_.size());
}

}  // namespace onecopy
