// SPDX-License-Identifier: Apache-2.0
#include "os/fork_hook.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "onecopy/core/error.h"

namespace onecopy {

namespace {

constexpr auto kRanks = static_cast<std::size_t>(ForkRank::count);
using Hooks = std::array<std::atomic<const ForkHook*>, kRanks>;

constinit Hooks registered{};  // initialised before any hook is constructed
constinit Mutex forking;       // serialises forks
constinit std::array<const ForkHook*, kRanks>
    ready_hooks{};  // hooks whose first step has run; guarded by forking

}  // namespace

const int ForkHook::kError = pthread_atfork(&prepare, &finish_in_parent, &finish_in_child);

ForkHook::ForkHook(ForkRank rank, const ForkSteps& steps) noexcept : steps_(steps) {
  auto& first = registered[static_cast<std::size_t>(rank)];
  next_ = first.load();
  while (!first.compare_exchange_weak(next_, this)) {
  }
}

void ForkHook::check_registered() {
  if (kError != 0) throw_errno("pthread_atfork", kError);
}

void ForkHook::prepare() noexcept {
  forking.lock();
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    ready_hooks[rank] = registered[rank].load();
    for (const ForkHook* hook = ready_hooks[rank]; hook; hook = hook->next_)
      if (hook->steps_.prepare) hook->steps_.prepare();
  }
}

void ForkHook::finish_in_parent() noexcept {
  for (std::size_t rank = kRanks; rank-- != 0;)
    for (const ForkHook* hook = ready_hooks[rank]; hook; hook = hook->next_)
      if (hook->steps_.in_parent) hook->steps_.in_parent();
  forking.unlock();
}

void ForkHook::finish_in_child() noexcept {
  for (std::size_t rank = kRanks; rank-- != 0;)
    for (const ForkHook* hook = ready_hooks[rank]; hook; hook = hook->next_)
      if (hook->steps_.in_child) hook->steps_.in_child();
  forking.unlock();
}

}  // namespace onecopy
