// SPDX-License-Identifier: Apache-2.0
#include "onecopy/os/robust_mutex.h"

#include <pthread.h>

#include <cerrno>
#include <ctime>
#include <new>

#include "onecopy/core/error.h"

namespace onecopy {
namespace {

pthread_mutex_t* native(std::byte* storage) noexcept {
  static_assert(sizeof(pthread_mutex_t) <= sizeof(RobustMutex));
  static_assert(alignof(pthread_mutex_t) <= alignof(RobustMutex));
  return std::launder(reinterpret_cast<pthread_mutex_t*>(storage));
}

[[noreturn]] void throw_damaged(int error) {
  throw Error(ErrorCode::protocol,
              "a lock in shared memory is damaged: another process wrote over it or never made it", error,
              ErrorDomain::posix);
}

/// Of a mutex as init() makes it. glibc trusts this word: a wrong one may abort the process.
int expected_kind() {
  static const int kind = [] {
    RobustMutex mutex;
    mutex.init();
    return reinterpret_cast<pthread_mutex_t*>(&mutex)->__data.__kind;
  }();
  return kind;
}

pthread_mutex_t* checked(std::byte* storage) {
  pthread_mutex_t* mutex = native(storage);
  if (__atomic_load_n(&mutex->__data.__kind, __ATOMIC_RELAXED) != expected_kind()) throw_damaged(EINVAL);
  return mutex;
}

/// What a lock call's result means: true for locked. The state of a dead holder is taken as it is.
bool settle(pthread_mutex_t* mutex, int result) {
  if (result == EOWNERDEAD) result = ::pthread_mutex_consistent(mutex);
  if (result == EBUSY || result == ETIMEDOUT) return false;
  if (result != 0) throw_damaged(result);
  return true;
}

timespec after(std::chrono::nanoseconds timeout, clockid_t clock) noexcept {
  timespec at;
  ::clock_gettime(clock, &at);
  const auto nanoseconds = at.tv_nsec + timeout.count() % 1'000'000'000;
  at.tv_sec += static_cast<time_t>(timeout.count() / 1'000'000'000 + nanoseconds / 1'000'000'000);
  at.tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000);
  return at;
}

}  // namespace

void RobustMutex::init() {
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int result = ::pthread_mutex_init(native(storage_), &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  if (result != 0) throw_errno("cannot make a lock in shared memory", result);
}

void RobustMutex::lock() {
  pthread_mutex_t* mutex = checked(storage_);
  settle(mutex, ::pthread_mutex_lock(mutex));
}

bool RobustMutex::try_lock() {
  pthread_mutex_t* mutex = checked(storage_);
  return settle(mutex, ::pthread_mutex_trylock(mutex));
}

bool RobustMutex::try_lock_for(std::chrono::nanoseconds timeout) {
  if (try_lock()) return true;
  if (timeout.count() <= 0) return false;
  pthread_mutex_t* mutex = native(storage_);
#if defined(__SANITIZE_THREAD__)  // It does not see clocklock, and then takes the unlock for a mistake.
  const timespec until = after(timeout, CLOCK_REALTIME);
  return settle(mutex, ::pthread_mutex_timedlock(mutex, &until));
#else
  const timespec until = after(timeout, CLOCK_MONOTONIC);
  return settle(mutex, ::pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &until));
#endif
}

void RobustMutex::unlock() noexcept { ::pthread_mutex_unlock(native(storage_)); }

}  // namespace onecopy
