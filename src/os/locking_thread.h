// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

struct robust_list_head;

namespace onecopy {

/// This thread as holder of locks in shared memory: its id, and what the kernel looks at when it dies.
///
/// The kernel knows a list of locks for each thread, which is the C library's (set_robust_list(2)). It has a place for
/// the one lock that a thread is busy with. That place is used, and not the list: list entries lie beside their locks,
/// in memory that other processes write.
///
/// Thread safety: an object belongs to its thread.
class LockingThread {
 public:
  /// In a forked child it is another one, however the child was made.
  static LockingThread& current() noexcept;

  std::uint32_t id() const noexcept { return id_; }
  /// From here to end() the kernel frees `word` when this thread dies as its holder. It can do that for one word at a
  /// time: within a first begin() a second one does nothing.
  void begin(const void* word) noexcept;
  void end(const void* word) noexcept;

  /// False when no thread of this PID namespace has that id.
  static bool exists(std::uint32_t id) noexcept;

 private:
  void look_up() noexcept;

  int pid_ = 0;
  std::uint32_t id_ = 0;
  robust_list_head* kernel_looks_at_ = nullptr;  ///< null where the kernel refuses to tell
};

}  // namespace onecopy
