// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/local_queues.h"

#include "share/owner/holds.h"

namespace onecopy {

void LocalQueues::add(std::uint64_t queue, QueueHooks hooks) {
  const LockGuard lock(mutex_);
  queues_[queue] = std::move(hooks);
}

void LocalQueues::remove(std::uint64_t queue, bool is_over) noexcept {
  const LockGuard lock(mutex_);
  queues_.erase(queue);
  if (is_over) note_over(queue);
}

/// Without memory for it, items of the dead are waited for until time ends that.
void LocalQueues::note_over(std::uint64_t queue) noexcept {
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(over_, [&](const auto& one) { return now - one.second > 2 * Holds::kLifetime; });
  try {
    over_[queue] = now;
  } catch (const std::bad_alloc&) {
    return;
  }
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
  if (over_.contains(queue)) return QueueProgress{0, UINT64_MAX};
  const auto at = queues_.find(queue);
  if (at == queues_.end()) return {};
  return at->second.progress();
}

}  // namespace onecopy
