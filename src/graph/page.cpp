// SPDX-License-Identifier: Apache-2.0
#include "graph/page.h"

#include "device/backend.h"

namespace onecopy::graph {

Page::Page(Device device, std::size_t offset, std::size_t bytes, std::size_t part_bytes) noexcept
    : device_(device), offset_(offset), bytes_(bytes), part_bytes_(part_bytes) {}

const PhysicalChunk& Page::whole() {
  if (!whole_) whole_ = backend(device_.type).create_chunk(device_.index, bytes_);
  return *whole_;
}

const PhysicalChunk& Page::part(std::size_t at) {
  const auto found = parts_.find(at);
  if (found != parts_.end()) return *found->second;
  return *parts_.emplace(at, backend(device_.type).create_chunk(device_.index, part_bytes_)).first->second;
}

void Page::keep(bool whole, bool parts) noexcept {
  if (!whole) whole_.reset();
  if (!parts) parts_.clear();
}

}  // namespace onecopy::graph
