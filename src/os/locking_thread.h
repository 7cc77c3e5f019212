// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "os/process.h"

struct robust_list_head;

namespace onecopy {

/// This thread as holder of locks in shared memory: its id, and the announcement that the kernel reads at its death.
///
/// The kernel knows a list of locks for each thread, which is the C library's (set_robust_list(2)). It has a place
/// for the one lock that a thread is busy with. That place is used instead of the list: list entries lie beside their
/// locks, in memory that other processes write.
///
/// Thread safety: an object belongs to its thread.
class LockingThread {
 public:
  /// A forked child gets another one, also after a raw clone.
  static LockingThread& current() noexcept {
    static constinit thread_local LockingThread me;
    if (me.pid_ != current_pid()) [[unlikely]]
      me.look_up();
    return me;
  }

  std::uint32_t id() const noexcept { return id_; }
  /// From here to end(), if this thread dies as the holder of `word`, the kernel frees it. That works for one word at
  /// a time: within a first begin() a second one has no effect.
  void begin(const void* word) noexcept;
  void end(const void* word) noexcept;

  /// Returns false if no thread of this PID namespace has that id.
  static bool exists(std::uint32_t id) noexcept;

 private:
  void look_up() noexcept;

  int pid_ = 0;
  std::uint32_t id_ = 0;
  robust_list_head* kernel_looks_at_ = nullptr;  ///< null if the kernel refuses to tell
};

}  // namespace onecopy
