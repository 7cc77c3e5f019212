// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>

namespace onecopy {

/// A mutex in memory that processes share, which survives the death of its holder: the next thread locks as usual. The
/// data that it protects must therefore be valid after every single instruction of the holder. The mutex contains no
/// pointer: a process that overwrites it can break mutual exclusion, but cannot crash another process.
///
/// Thread safety: all members but init() may be called concurrently, from any process of one pid namespace. One process
/// calls init() before others see the mutex. A RobustMutex lives in shared memory and is never copied or destroyed.
/// std::lock_guard can lock it.
///
/// A thread that holds one mutex should not take a second one. The kernel knows only the first; that a dead thread
/// holds the second is noticed after 0.1 s. Locking throws protocol if init() never ran, or if the mutex names the
/// calling thread as its holder. A mutex that was overwritten with the id of another living thread stays locked.
class RobustMutex {
 public:
  RobustMutex& operator=(RobustMutex&&) = delete;

  void init();
  void lock();
  bool try_lock();
  /// Locks the mutex. Returns false if `timeout` passed first.
  bool try_lock_for(std::chrono::nanoseconds timeout);
  /// Releases the mutex. REQUIRES: this thread holds it.
  void unlock() noexcept;

 private:
  alignas(8) std::byte storage_[48];
};

static_assert(sizeof(RobustMutex) == 48);

}  // namespace onecopy
