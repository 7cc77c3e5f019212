// SPDX-License-Identifier: Apache-2.0
#include "share/owner/transit_counts.h"

namespace onecopy {

void TransitCounts::note(std::uint64_t channel) noexcept {
  for (std::size_t i = 0; i < kQueues; ++i) {
    Word& place = channels_[(channel + i) % kQueues];
    std::uint64_t found = place.load();
    if (found == channel || (found == 0 && place.compare_exchange_strong(found, channel)) ||
        found == channel)
      return;
  }
  channels_[kQueues] = 1;
}

std::optional<std::vector<std::uint64_t>> TransitCounts::channels() const {
  if (channels_[kQueues].load() != 0) return {};
  std::vector<std::uint64_t> list;
  for (std::size_t i = 0; i < kQueues; ++i)
    if (const std::uint64_t channel = channels_[i].load(); channel != 0) list.push_back(channel);
  return list;
}

}  // namespace onecopy
