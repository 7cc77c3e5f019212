// SPDX-License-Identifier: Apache-2.0
#include "share/broker/undelivered_items.h"

#include "share/owner/holds.h"

namespace onecopy {

UndeliveredItems::UndeliveredItems(std::size_t blocks, const TransitCounts& transits) : blocks_(blocks) {
  const auto channels = transits.channels();
  if (!channels) return;
  knows_queues_ = true;
  for (const std::uint64_t channel : *channels) waiting_for_[channel];
}

bool UndeliveredItems::are_delivered(const LocalQueues& queues) {
  const auto now = Clock::now();
  if (now - since_ > Holds::kLifetime) return true;
  if (!knows_queues_) return false;
  const auto all = [](QueueMark& mark) { return &mark; };
  if (queues.drop_passed(waiting_for_, /*closed_is_passed=*/false, all)) return false;
  if (!taken_) taken_ = now;
  return now - *taken_ > std::chrono::milliseconds(after_transit_ms);
}

}  // namespace onecopy
