// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/hazard_guard.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <new>

namespace onecopy {
namespace {

/// A thread had no room to record its place.
std::atomic<bool> is_unknown{false};

bool try_register() noexcept {
  return ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

bool try_barrier() noexcept {
  return ::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

/// From here on every thread's earlier stores are seen, and every thread's later loads see ours.
bool barrier_of_all_threads() noexcept {
  if (try_barrier()) return true;
  if (errno != EPERM) return false;  // an old kernel, or a sandbox
  return try_register() && try_barrier();
}

}  // namespace

/// At a thread's end another may have its slot.
struct HazardGuard::SlotReturn {
  SlotReturn() noexcept : failed(pthread_key_create(&key, &leave)) {}
  static void leave(void* slot) noexcept {
    mine_ = nullptr;
    static_cast<Slot*>(slot)->is_taken.store(false, std::memory_order_release);
  }
  pthread_key_t key{};
  const int failed;
};

HazardGuard::Slot* HazardGuard::take() noexcept {
  for (Slot* v = all_.load(std::memory_order_acquire); v; v = v->next)
    if (!v->is_taken.load(std::memory_order_relaxed) && !v->is_taken.exchange(true)) return v;
  auto* v = new (std::nothrow) Slot;
  if (!v) return nullptr;
  v->next = all_.load(std::memory_order_relaxed);
  while (!all_.compare_exchange_weak(v->next, v)) {
  }
  return v;
}

HazardGuard::Slot& HazardGuard::begin() noexcept {
  static SlotReturn leaving;
  static Slot nameless;
  Slot* const slot = leaving.failed == 0 ? take() : nullptr;
  if (slot && pthread_setspecific(leaving.key, slot) == 0) return *(mine_ = slot);
  if (slot) slot->is_taken = false;
  is_unknown = true;
  return nameless;
}

void HazardGuard::prepare() noexcept {
  static std::atomic<bool> is_prepared{false};
  if (!is_prepared.exchange(true)) try_register();
}

/// The folder of the threads has two links, and one more for each thread.
void HazardGuard::prepare_if_single_threaded() noexcept {
  struct stat threads {};
  if (::stat("/proc/self/task", &threads) == 0 && threads.st_nlink == 3) prepare();
}

HazardGuard::Readers HazardGuard::readers_of(const void* place) noexcept {
  if (!barrier_of_all_threads() || is_unknown) return Readers::unknown;
  for (const Slot* v = all_.load(std::memory_order_acquire); v; v = v->next)
    if (v->place.load(std::memory_order_acquire) == place) return Readers::some;
  return Readers::none;
}

void HazardGuard::forget_others() noexcept {
  for (Slot* v = all_.load(std::memory_order_relaxed); v; v = v->next) {
    if (v == mine_) continue;
    v->place.store(nullptr, std::memory_order_relaxed);
    v->is_taken.store(false, std::memory_order_relaxed);
  }
}

}  // namespace onecopy
