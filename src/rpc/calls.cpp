// SPDX-License-Identifier: Apache-2.0
#include "rpc/calls.h"

#include <algorithm>
#include <utility>

#include "onecopy/core/error.h"

namespace onecopy::rpc {

constexpr std::size_t kFirstSlots = 16;

std::uint64_t Calls::add(const CallRef& call) {
  const LockGuard lock(mutex_);
  if (free_.empty()) {
    if (slots_.size() == std::size_t{1} << kIndexBits)
      throw Error(ErrorCode::out_of_memory,
                  "sixteen million calls have no answer yet: wait for some of them before more are made");
    if (slots_.size() == slots_.capacity()) slots_.reserve(std::max(kFirstSlots, 2 * slots_.size()));
    free_.reserve(slots_.capacity());  // so that neither the following lines nor taking a call fail
    free_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  slots_[index] = {++last_ << kIndexBits | index, call};
  call->number = slots_[index].number;
  count_.fetch_add(1, std::memory_order_relaxed);
  const std::int64_t deadline = call->deadline().at().time_since_epoch().count();
  if (deadline < next_deadline_.load(std::memory_order_relaxed))
    next_deadline_.store(deadline, std::memory_order_relaxed);
  return slots_[index].number;
}

CallRef Calls::take_out(std::size_t index) {
  slots_[index].number = 0;
  free_.push_back(static_cast<std::uint32_t>(index));
  count_.fetch_sub(1, std::memory_order_relaxed);
  return std::move(slots_[index].call);
}

CallRef Calls::find(std::uint64_t number) {
  const std::size_t index = number & ((std::uint64_t{1} << kIndexBits) - 1);
  const LockGuard lock(mutex_);
  return index < slots_.size() && slots_[index].number == number ? slots_[index].call : nullptr;
}

CallRef Calls::take(std::uint64_t number, std::optional<std::uint32_t> member) {
  const std::size_t index = number & ((std::uint64_t{1} << kIndexBits) - 1);
  const LockGuard lock(mutex_);
  if (number == 0 || index >= slots_.size() || slots_[index].number != number) return {};
  if (member && slots_[index].call->member() != *member) return {};
  return take_out(index);
}

/// Removes and returns the calls that are wanted. Sets the next deadline on the way.
template <class Wants>
std::vector<CallRef> Calls::take_if(Wants&& wants) {
  std::vector<CallRef> taken;
  const LockGuard lock(mutex_);
  Deadline next = kForever;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].number == 0) continue;
    if (wants(*slots_[i].call)) taken.push_back(take_out(i));
    else next = std::min(next, slots_[i].call->deadline());
  }
  next_deadline_.store(next.at().time_since_epoch().count(), std::memory_order_relaxed);
  return taken;
}

std::vector<CallRef> Calls::take_late(TimePoint now) {
  if (now < next_deadline()) return {};
  return take_if([&](const Call& call) { return call.deadline() <= now; });
}

std::vector<CallRef> Calls::take_of(std::uint32_t member, std::uint32_t session) {
  return take_if([&](const Call& call) { return call.member() == member && call.session() == session; });
}

std::vector<CallRef> Calls::take_all() {
  return take_if([](const Call&) { return true; });
}

std::map<std::uint32_t, std::size_t> Calls::by_member() const {
  std::map<std::uint32_t, std::size_t> counts;
  const LockGuard lock(mutex_);
  for (const Slot& slot : slots_)
    if (slot.number != 0) ++counts[slot.call->member()];
  return counts;
}

}  // namespace onecopy::rpc
