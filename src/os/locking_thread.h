// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "os/process.h"

struct robust_list_head;

namespace onecopy {

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

}  // namespace onecopy
