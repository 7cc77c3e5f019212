// SPDX-License-Identifier: Apache-2.0
#include "share/broker/undelivered_items.h"

#include <iterator>

#include "share/owner/holds.h"

namespace onecopy {

UndeliveredItems::UndeliveredItems(std::size_t blocks, const Transits& transits) : blocks_(blocks) {
  const auto channels = transits.channels();
  if (!channels) return;
  knows_queues_ = true;
  for (const std::uint64_t channel : *channels) waiting_for_[channel];
}

bool UndeliveredItems::are_delivered(const Deposits& deposits) {
  const auto now = Clock::now();
  if (now - since_ > Holds::kLifetime) return true;
  if (!knows_queues_ || !has_passed_all(deposits)) return false;
  if (!taken_) taken_ = now;
  return now - *taken_ > std::chrono::milliseconds(after_transit_ms);
}

bool UndeliveredItems::has_passed_all(const Deposits& deposits) {
  for (auto at = waiting_for_.begin(); at != waiting_for_.end();) {
    auto& [channel, put_at_death] = *at;
    const auto progress = deposits.progress(channel);
    if (progress && !put_at_death) put_at_death = progress->first;
    const bool passed = progress && progress->second >= *put_at_death;
    at = passed ? waiting_for_.erase(at) : std::next(at);
  }
  return waiting_for_.empty();
}

}  // namespace onecopy
