// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/local_queues.h"

namespace onecopy {

void LocalQueues::add(std::uint64_t queue, QueueHooks hooks) {
  const LockGuard lock(mutex_);
  queues_[queue] = std::move(hooks);
}

void LocalQueues::remove(std::uint64_t queue) noexcept {
  const LockGuard lock(mutex_);
  queues_.erase(queue);
}

bool LocalQueues::contains(std::uint64_t queue) const {
  const LockGuard lock(mutex_);
  return queues_.contains(queue);
}

void LocalQueues::report_users(std::uint64_t queue, std::size_t users) const noexcept {
  const LockGuard lock(mutex_);
  const auto at = queues_.find(queue);
  if (at != queues_.end() && at->second.users) at->second.users(users);
}

std::optional<QueueProgress> LocalQueues::progress(std::uint64_t queue) const {
  const LockGuard lock(mutex_);
  const auto at = queues_.find(queue);
  if (at == queues_.end()) return {};
  return at->second.progress();
}

}  // namespace onecopy
