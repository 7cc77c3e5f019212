// SPDX-License-Identifier: Apache-2.0
#include "device/vmm_segment.h"

#include "onecopy/core/error.h"

namespace onecopy {

VmmSegment::VmmSegment(Backend& backend, SegmentKind kind, int ordinal, std::size_t bytes)
    : DeviceMemory(Access::read_write),
      backend_(backend),
      kind_(kind),
      home_(ordinal),
      user_(ordinal),
      reservation_(backend.reserve(ordinal, bytes)) {}

/// Maps the memory for `home`, too, because the device that holds the memory makes the copies to it.
VmmSegment::VmmSegment(Backend& backend, int home, int user, ExportedMemory memory, Access access)
    : DeviceMemory(access),
      backend_(backend),
      kind_(memory.kind),
      home_(home),
      user_(user),
      reservation_(backend.reserve(user, memory.size)) {
  chunks_ = backend.import_chunks(home, std::move(memory), user);
  std::size_t end = 0;
  for (const auto& chunk : chunks_) {
    reservation_->map(end, *chunk, 0, chunk->size());
    end += chunk->size();
  }
  reservation_->allow(user, 0, end, access);
  if (home == user) return;
  reservation_->allow(home, 0, end, access);
  allowed_.insert(home);
}

void VmmSegment::do_commit(std::size_t, std::size_t) {
  const LockGuard lock(mutex_);
  if (!chunks_.empty()) return;
  auto chunk = backend_.create_chunk(home_, size());
  chunks_.reserve(1);
  reservation_->map(0, *chunk, 0, size());
  try {
    reservation_->allow(home_, 0, size(), Access::read_write);
  } catch (...) {
    reservation_->unmap(0, size());
    throw;
  }
  chunks_.push_back(std::move(chunk));
}

/// Decommits the whole chunk or nothing. The watch thread calls it, even while other threads capture.
void VmmSegment::decommit(std::size_t offset, std::size_t bytes) noexcept {
  if (offset != 0 || bytes != size()) return;
  const LockGuard lock(mutex_);
  reservation_->unmap(0, size());
  allowed_.clear();
  chunks_.clear();
}

ExportedMemory VmmSegment::do_export(Access access) const {
  const LockGuard lock(mutex_);
  if (chunks_.empty())
    throw Error(ErrorCode::invalid_argument, "the segment has no memory yet: commit it first");
  return backend_.export_chunks(chunks_, access);
}

std::byte* VmmSegment::allow(int ordinal) {
  const LockGuard lock(mutex_);
  if (ordinal == user_ || allowed_.contains(ordinal)) return data();
  reservation_->allow(ordinal, 0, size(), access());
  allowed_.insert(ordinal);
  return data();
}

}  // namespace onecopy
