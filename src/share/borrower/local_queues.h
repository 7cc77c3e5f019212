// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "os/mutex.h"

namespace onecopy {

/// How far a queue has come.
struct QueueProgress {
  std::uint64_t put;    ///< items ever put
  std::uint64_t taken;  ///< items ever taken

  bool operator==(const QueueProgress&) const = default;
};

/// The end of a queue at some moment: the first look after the mark was made or reset. Thread safety: as a value.
class QueueMark {
 public:
  /// True once all items are taken that had been put at the first look.
  bool is_passed_at(const QueueProgress& now) noexcept {
    if (!put_) put_ = now.put;
    return now.taken >= *put_;
  }
  void reset() noexcept { put_.reset(); }

 private:
  std::optional<std::uint64_t> put_;
};

/// A queue as the share layer sees it. Both functions are called on the watch thread, and must neither throw nor call
/// back.
struct QueueHooks {
  /// Empty if the queue is closed.
  std::function<std::optional<QueueProgress>()> progress;
  /// In the queue's creator: how many other processes have it open, at each change.
  std::function<void(std::size_t users)> users;
};

/// The queues that this process has open, by their numbers: random, and equal in every process.
///
/// Thread safety: all members may be called concurrently. Invariant: no hook is called once remove() has returned.
class LocalQueues {
 public:
  void add(std::uint64_t queue, QueueHooks hooks);
  /// `is_over`: no process takes its items from here on. Then all of them count as taken.
  void remove(std::uint64_t queue, bool is_over = false) noexcept;
  bool contains(std::uint64_t queue) const;
  void report_users(std::uint64_t queue, std::size_t users) const noexcept;

  /// Drops each element of `marks` whose queue's head has passed its mark. `mark_of` returns a pointer to an element's
  /// mark, or null for an element that stays. Elements of queues that are closed, or not open here, go if
  /// `closed_is_passed`. Returns true while an element waits for its queue.
  template <class Element, class MarkOf>
  bool drop_passed(std::map<std::uint64_t, Element>& marks, bool closed_is_passed, MarkOf&& mark_of) const;

  // Around a fork. A child keeps the queues of its parent.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

 private:
  std::optional<QueueProgress> progress(std::uint64_t queue) const;
  void note_over(std::uint64_t queue) noexcept REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::uint64_t, QueueHooks> queues_ GUARDED_BY(mutex_);
  /// Queues that are over, and since when: as long as items of the dead are waited for.
  std::map<std::uint64_t, std::chrono::steady_clock::time_point> over_ GUARDED_BY(mutex_);
};

template <class Element, class MarkOf>
bool LocalQueues::drop_passed(std::map<std::uint64_t, Element>& marks, bool closed_is_passed,
                              MarkOf&& mark_of) const {
  bool is_waiting = false;
  for (auto at = marks.begin(); at != marks.end();) {
    QueueMark* const mark = mark_of(at->second);
    bool is_passed = false;
    if (mark) {
      const auto now = progress(at->first);
      is_passed = now ? mark->is_passed_at(*now) : closed_is_passed;
      is_waiting = is_waiting || !is_passed;
    }
    at = is_passed ? marks.erase(at) : std::next(at);
  }
  return is_waiting;
}

}  // namespace onecopy
