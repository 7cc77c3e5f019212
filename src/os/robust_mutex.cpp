// SPDX-License-Identifier: Apache-2.0
#include "os/robust_mutex.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <new>

#include "onecopy/core/error.h"
#include "os/deadline.h"
#include "os/futex.h"
#include "os/lock_word.h"
#include "os/locking_thread.h"

namespace onecopy {
namespace {

using std::chrono::nanoseconds;

static_assert(std::endian::native == std::endian::little,
              "the kernel uses the first half of a lock's word");

struct Machine {
  using Word = std::atomic<std::uint64_t>;
  using Thread = LockingThread;

  static bool wait(const Thread&, const Word& word, std::uint32_t seen, nanoseconds longest) noexcept {
    return futex_wait(kernels_half(word), seen, longest);
  }
  static void wake_one(const Word& word) noexcept { futex_wake(kernels_half(word), 1); }
  static bool exists(std::uint32_t thread) noexcept { return LockingThread::exists(thread); }

 private:
  /// Returns the address for the futex call. Nothing here reads the word by half.
  static const std::atomic<std::uint32_t>& kernels_half(const Word& word) noexcept {
    return reinterpret_cast<const std::atomic<std::uint32_t>&>(word);
  }
};

constexpr std::uint64_t kMagic = 0x316b636f'6c636fULL;  // "oclock1"

struct Lock {
  LockWord<Machine> word;
  std::atomic<std::uint64_t> magic;
};

[[noreturn]] void throw_damaged(int error) {
  throw Error(ErrorCode::protocol,
              "a lock in shared memory is damaged: another process wrote over it or never made it", error,
              ErrorDomain::posix);
}

Lock& lock_in(std::byte* storage) noexcept {
  static_assert(sizeof(Lock) <= sizeof(RobustMutex));
  static_assert(alignof(Lock) <= alignof(RobustMutex));
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  return *std::launder(reinterpret_cast<Lock*>(storage));
}

LockWord<Machine>& checked(std::byte* storage) {
  Lock& lock = lock_in(storage);
  if (lock.magic.load(std::memory_order_relaxed) != kMagic) throw_damaged(EINVAL);
  return lock.word;
}

/// The max length of a sleep, after which a change without a wake is found.
constexpr std::chrono::milliseconds kSlice{100};

template <class Slice>
bool lock_slowly(LockWord<Machine>& word, Slice&& slice) {
  LockingThread& me = LockingThread::current();
  if (word.holder() == me.id()) throw_damaged(EDEADLK);  // no thread locks twice
  return word.lock(me, slice);
}

}  // namespace

void RobustMutex::init() { (new (storage_) Lock)->magic.store(kMagic); }

void RobustMutex::lock() {
  if (!try_lock()) lock_slowly(checked(storage_), [] { return nanoseconds(kSlice); });
}

bool RobustMutex::try_lock() { return checked(storage_).try_lock(LockingThread::current()); }

bool RobustMutex::try_lock_for(nanoseconds timeout) {
  if (try_lock()) return true;
  const auto end = std::chrono::steady_clock::now() + timeout;
  return lock_slowly(checked(storage_), [end] {
    return std::min<nanoseconds>(kSlice, end - std::chrono::steady_clock::now());
  });
}

void RobustMutex::unlock() noexcept { lock_in(storage_).word.unlock(LockingThread::current()); }

}  // namespace onecopy
