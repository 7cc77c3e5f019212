// SPDX-License-Identifier: Apache-2.0
#include "rpc/workers.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <system_error>

#include "os/blocked_signals.h"
#include "os/log.h"

namespace onecopy::rpc {

void Workers::add() {
  const LockGuard lock(mutex_);
  for (std::thread& thread : retired_) thread.join();
  retired_.clear();
  if (is_closed_ || threads_.size() >= max_threads_) return;
  const BlockedSignals blocked;
  try {
    threads_.emplace_back([this] {
      ::pthread_setname_np(::pthread_self(), "onecopy-rpc");
      work();
      retire();
    });
  } catch (const std::system_error& error) {  // a busy worker takes the call later
    log_warning(fmt::format("cannot start a worker of rpc; the call stays queued: {}", error.what()));
  }
}

/// The object to which this thread belongs, and the number of nested functions that the thread runs.
thread_local const Workers* t_workers = nullptr;
thread_local int t_depth = 0;
constexpr int kMaxWithin = 16;  // chosen well below what a stack has room for

void Workers::help(const Node& node) noexcept {
  Work work;
  if (!t_workers || &t_workers->node_ != &node || t_depth == kMaxWithin || !t_workers->node_.try_help(work))
    return;
  ++t_depth;
  t_workers->run_(work);
  --t_depth;
}

void Workers::work() noexcept {
  t_workers = this;
  Work work;
  while (node_.next(work)) {
    if (node_.wants_worker()) start_();
    run_(work);
    work = {};
  }
  t_workers = nullptr;
}

/// Makes this thread end. The next add() joins it, or join() does.
void Workers::retire() noexcept {
  const LockGuard lock(mutex_);
  const auto own = std::find_if(threads_.begin(), threads_.end(), [](const std::thread& thread) {
    return thread.get_id() == std::this_thread::get_id();
  });
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
