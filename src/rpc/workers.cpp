// SPDX-License-Identifier: Apache-2.0
#include "rpc/workers.h"

#include <fmt/format.h>
#include <pthread.h>

#include <system_error>

#include "os/blocked_signals.h"
#include "os/log.h"

namespace onecopy::rpc {

void Workers::add() {
  const LockGuard lock(mutex_);
  if (is_closed_ || threads_.size() >= most_) return;
  const BlockedSignals blocked;
  try {
    threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {  // those that run something go on when they are done
    log_warning(fmt::format("no thread is to be had for a call of rpc, which waits: {}", error.what()));
  }
}

/// Of this thread: whose worker it is, and how many functions it runs within each other.
thread_local const Workers* t_workers = nullptr;
thread_local int t_depth = 0;
constexpr int kMostWithin = 16;  // a stack has room for more

void Workers::help() noexcept {
  Work work;
  if (t_workers != this || t_depth == kMostWithin || !node_.try_help(work)) return;
  ++t_depth;
  run_(work);
  --t_depth;
}

void Workers::work() noexcept {
  t_workers = this;
  ::pthread_setname_np(::pthread_self(), "onecopy-rpc");
  Work work;
  while (node_.next(work)) {
    if (node_.wants_worker()) add();
    run_(work);
    work = {};
  }
}

void Workers::join() {
  std::vector<std::thread> threads;
  {
    const LockGuard lock(mutex_);
    is_closed_ = true;
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace onecopy::rpc
