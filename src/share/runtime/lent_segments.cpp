// SPDX-License-Identifier: Apache-2.0
#include "share/runtime/lent_segments.h"

#include <utility>

namespace onecopy {

std::uint32_t LentSegments::add(Device device, std::unique_ptr<DeviceMemory> memory) {
  const std::uint32_t number = segments_.next_number();
  const LockGuard lock(mutex_);
  const auto at = uses_.try_emplace(number, 1).first;
  try {
    segments_.add(number, device, std::move(memory));
  } catch (...) {
    uses_.erase(at);
    throw;
  }
  return number;
}

void LentSegments::add_use(std::uint32_t segment) {
  const LockGuard lock(mutex_);
  ++uses_[segment];
}

void LentSegments::free(const Extent& extent) noexcept {
  {
    const LockGuard lock(mutex_);
    const auto at = uses_.find(extent.segment);
    if (at == uses_.end() || --at->second != 0) return;
    uses_.erase(at);
  }
  segments_.remove(extent.segment);
}

LentSegment::LentSegment(Device device, std::unique_ptr<DeviceMemory> memory, LentSegments& segments,
                         Ledger& ledger)
    : segments_(segments),
      ledger_(ledger),
      data_(memory->data()),
      segment_(segments.add(device, std::move(memory))) {}

LentSegment::~LentSegment() {
  if (is_of_this_process()) segments_.free({segment_, 0, 0, data_});
}

BlockRef LentSegment::lend(std::uint64_t offset, std::uint64_t bytes, std::byte*& at) {
  const Extent extent{segment_, offset, bytes, data_ + offset};
  segments_.add_use(segment_);
  try {
    BlockRef block = ledger_.add(extent, segments_);
    at = extent.data;
    return block;
  } catch (...) {
    segments_.free(extent);
    throw;
  }
}

}  // namespace onecopy
