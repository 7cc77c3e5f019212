// SPDX-License-Identifier: Apache-2.0
#include "kept_descriptors.h"

#include <utility>

namespace onecopy::cuda {

namespace {

bool take(Room& room, std::size_t count) noexcept {
  std::size_t left = room.load();
  while (left >= count && !room.compare_exchange_weak(left, left - count)) {
  }
  return left >= count;
}

}  // namespace

void KeptDescriptors::keep(std::vector<Fd> fds) {
  std::vector<UnsharedDescriptor> unshared;
  unshared.reserve(fds.size());
  for (const Fd& fd : fds) unshared.emplace_back(fd.get());
  if (!take(room_, fds.size())) return;
  fds_ = std::move(fds);
  unshared_ = std::move(unshared);
}

void KeptDescriptors::close() noexcept {
  const std::size_t count = fds_.size();
  unshared_.clear();
  fds_.clear();
  room_ += count;
}

}  // namespace onecopy::cuda
