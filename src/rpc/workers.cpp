// SPDX-License-Identifier: Apache-2.0
#include "rpc/workers.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <exception>

#include "os/blocked_signals.h"
#include "os/log.h"

namespace onecopy::rpc {

void Workers::add(bool beyond_limit) {
  const LockGuard lock(mutex_);
  for (std::thread& thread : retired_) thread.join();
  retired_.clear();
  if (is_closed_ || (threads_.size() >= max_threads_ && !beyond_limit)) return;
  const BlockedSignals blocked;
  try {
    threads_.emplace_back([this] {
      ::pthread_setname_np(::pthread_self(), "onecopy-rpc");
      work();
      retire();
    });
  } catch (const std::exception& error) {  // a busy worker takes the call later
    log_warning(fmt::format("cannot start a worker of rpc; the call stays queued: {}", error.what()));
  }
}

/// The object to which this thread belongs, and the number of nested functions that the thread runs.
thread_local Workers* t_workers = nullptr;
thread_local int t_depth = 0;
/// The address below which the stack of this thread has no room for further nested functions; 0 if it is unknown.
thread_local std::uintptr_t t_stack_limit = 0;
/// The max number of nested functions on a thread of the caller's, whose stack this class does not know.
constexpr int kMaxWithin = 16;

std::uintptr_t middle_of_stack() noexcept {
  pthread_attr_t attributes;
  void* lowest = nullptr;
  std::size_t bytes = 0;
  if (::pthread_getattr_np(::pthread_self(), &attributes) != 0) return 0;
  ::pthread_attr_getstack(&attributes, &lowest, &bytes);
  ::pthread_attr_destroy(&attributes);
  return reinterpret_cast<std::uintptr_t>(lowest) + bytes / 2;
}

bool Workers::has_room() const noexcept {
  if (t_stack_limit == 0) return t_depth < kMaxWithin;
  return reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) > t_stack_limit;
}

bool Workers::help(Node& node) noexcept {
  Workers* const own = t_workers;
  if (!own || &own->node_ != &node) return false;
  if (!own->has_room()) {
    if (own->max_threads_ != 0 && node.lacks_workers()) own->add(true);
    return false;
  }
  Work work;
  if (!node.try_help(work)) return false;
  ++t_depth;
  own->run_(work);
  --t_depth;
  return true;
}

void Workers::wait_for(Node& node, const CallRef& call) {
  constexpr std::chrono::nanoseconds kFirst{50'000}, kLast{5'000'000};
  auto pause = kFirst;
  while (!wait_once(node, call, pause)) pause = help(node) ? kFirst : std::min(2 * pause, kLast);
}

/// Waits for a slice. While all threads of the limit are taken, one of those that wait is the lookout, which waits for
/// `pause` alone: no bell tells a thread that waits for an answer of a call.
bool Workers::wait_once(Node& node, const CallRef& call, std::chrono::nanoseconds pause) {
  Workers* const own = t_workers;
  const bool may_look = own && &own->node_ == &node && own->has_room() && node.wants_worker() &&
                        own->count() >= own->max_threads_;
  if (!may_look || own->has_lookout_.exchange(true)) return node.wait(call, kForever);
  struct Leave {
    std::atomic<bool>& has_lookout;
    ~Leave() { has_lookout = false; }
  } const leave{own->has_lookout_};
  return node.wait(call, Deadline::after(pause));
}

void Workers::work() noexcept {
  t_workers = this;
  if (max_threads_ != 0) t_stack_limit = middle_of_stack();
  Work work;
  while (node_.next(work)) {
    if (node_.wants_worker()) start_();
    run_(work);
    work = {};
    node_.end_work();
  }
  t_workers = nullptr;
}

/// Makes this thread end. The next add() joins it, or join() does.
void Workers::retire() noexcept {
  const LockGuard lock(mutex_);
  const auto own = std::ranges::find(threads_, std::this_thread::get_id(), &std::thread::get_id);
  if (own != threads_.end()) retired_.splice(retired_.end(), threads_, own);
}

void Workers::join() {
  std::list<std::thread> threads;
  {
    const LockGuard lock(mutex_);
    is_closed_ = true;
    if (is_own_thread()) return;  // otherwise two functions that both shut down would wait for each other
    threads.swap(threads_);
    threads.splice(threads.end(), retired_);
  }
  for (std::thread& thread : threads) thread.join();
}

bool Workers::is_own_thread() const noexcept { return t_workers == this; }

}  // namespace onecopy::rpc
