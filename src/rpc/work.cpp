// SPDX-License-Identifier: Apache-2.0
#include "rpc/work.h"

#include <algorithm>
#include <utility>

namespace onecopy::rpc {

void WorkQueue::push(Work&& work) {
  const LockGuard lock(mutex_);
  (work.is_in_order ? ordered_ : works_).push_back(std::move(work));
  count_ready();
}

bool WorkQueue::try_pop(Work& work) {
  if (!is_ready()) return false;
  const LockGuard lock(mutex_);
  const bool takes_ordered = !is_in_order_ && !ordered_.empty();
  std::deque<Work>& from = takes_ordered ? ordered_ : works_;
  if (from.empty()) return false;
  work = std::move(from.front());
  from.pop_front();
  is_in_order_ = is_in_order_ || takes_ordered;
  count_ready();
  return true;
}

bool WorkQueue::try_pop_service(Work& work) {
  if (!is_ready()) return false;
  const LockGuard lock(mutex_);
  const auto at = std::ranges::find(works_, Work::Kind::service, &Work::kind);
  if (at == works_.end()) return false;
  work = std::move(*at);
  works_.erase(at);
  count_ready();
  return true;
}

bool WorkQueue::try_begin_order() {
  const LockGuard lock(mutex_);
  if (is_in_order_ || !ordered_.empty()) return false;
  return is_in_order_ = true;
}

void WorkQueue::end_order() noexcept {
  const LockGuard lock(mutex_);
  is_in_order_ = false;
  count_ready();
}

}  // namespace onecopy::rpc
