// SPDX-License-Identifier: Apache-2.0
#include "os/robust_mutex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

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
#include "os/process.h"

namespace onecopy {
namespace {

using std::chrono::nanoseconds;

/// The calling thread as a holder of locks in shared memory: its id, and the announcement that the kernel reads when
/// the thread dies.
///
/// The kernel knows one list of locks for each thread, which belongs to the C library (set_robust_list(2)), and one
/// place for the lock that the thread is just taking or releasing. Only that place is used here: list entries would lie
/// beside their locks, in memory that other processes write.
///
/// Thread safety: an object belongs to its thread.
class LockingThread {
 public:
  /// Returns the calling thread's object. A forked child gets another one, even after a raw clone.
  static LockingThread& current() noexcept {
    static constinit thread_local LockingThread me;
    if (me.pid_ != current_pid()) [[unlikely]]
      me.look_up();
    return me;
  }

  std::uint32_t id() const noexcept { return id_; }
  /// Announces `word` until end(): if this thread dies as its holder, the kernel frees the word. Only one word can be
  /// announced at a time: a second begin() within the first does nothing.
  void begin(const void* word) noexcept;
  void end(const void* word) noexcept;

  /// Returns whether a thread of this PID namespace has that id.
  static bool exists(std::uint32_t id) noexcept;

 private:
  void look_up() noexcept;

  int pid_ = 0;
  std::uint32_t id_ = 0;
  robust_list_head* kernel_looks_at_ = nullptr;  ///< null if the kernel refuses to tell
};

/// Returns the address that stands for the lock in the list; the kernel adds the offset to find the lock itself.
robust_list* entry_of(const void* word, long offset) noexcept {
  return reinterpret_cast<robust_list*>(const_cast<char*>(static_cast<const char*>(word)) - offset);
}

void tell(robust_list_head& head, robust_list* entry) noexcept {
  // The kernel reads the announcement when this thread has stopped, so only the compiler could reorder the writes.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  *const_cast<robust_list* volatile*>(&head.list_op_pending) = entry;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

/// Registers a list for threads that the C library did not start, such as the child of a raw clone.
robust_list_head* register_own() noexcept {
  thread_local robust_list_head own;
  own = {{&own.list}, 0, nullptr};
  return ::syscall(SYS_set_robust_list, &own, sizeof own) == 0 ? &own : nullptr;
}

void LockingThread::look_up() noexcept {
  pid_ = current_pid();
  id_ = static_cast<std::uint32_t>(::syscall(SYS_gettid));
  std::size_t size = 0;
  kernel_looks_at_ = nullptr;
  if (::syscall(SYS_get_robust_list, 0, &kernel_looks_at_, &size) != 0) kernel_looks_at_ = nullptr;
  else if (!kernel_looks_at_) kernel_looks_at_ = register_own();
}

void LockingThread::begin(const void* word) noexcept {
  if (kernel_looks_at_ && !kernel_looks_at_->list_op_pending)
    tell(*kernel_looks_at_, entry_of(word, kernel_looks_at_->futex_offset));
}

void LockingThread::end(const void* word) noexcept {
  if (kernel_looks_at_ &&
      kernel_looks_at_->list_op_pending == entry_of(word, kernel_looks_at_->futex_offset))
    tell(*kernel_looks_at_, nullptr);
}

bool LockingThread::exists(std::uint32_t id) noexcept {
  return ::syscall(SYS_tkill, static_cast<pid_t>(id), 0) == 0 || errno != ESRCH;
}

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
