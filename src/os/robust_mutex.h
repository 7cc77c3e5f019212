// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>

namespace onecopy {

/// A mutex in memory shared between processes that survives the death of its holder: the next one locks as usual. So
/// the data it protects must be valid after every single instruction of the holder. No pointer lies in it: a process
/// that writes over it can end its exclusion, and crashes no other.
///
/// Thread safety: all members but init() may be called concurrently, from any process of one pid namespace. Lives in
/// shared memory: never copied, never destroyed; init() by one process before the others see it. Usable with
/// std::lock_guard.
///
/// A thread that holds one should take no other. The kernel knows the first only, and a death that leaves the second
/// one locked is noticed after 0.1 s. A lock that no init() made, or that names the calling thread as its holder, is
/// an Error (protocol). If it is made to name another living thread, it stays locked.
class RobustMutex {
 public:
  RobustMutex() noexcept = default;
  RobustMutex(const RobustMutex&) = delete;
  RobustMutex& operator=(const RobustMutex&) = delete;

  void init();
  void lock();
  bool try_lock();
  /// Returns false if `timeout` passed first.
  bool try_lock_for(std::chrono::nanoseconds timeout);
  /// REQUIRES: this thread holds it.
  void unlock() noexcept;

 private:
  alignas(8) std::byte storage_[48];
};

static_assert(sizeof(RobustMutex) == 48);

}  // namespace onecopy
