// SPDX-License-Identifier: Apache-2.0
#include "os/locking_thread.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

#include "os/process.h"

namespace onecopy {
namespace {

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

}  // namespace

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

}  // namespace onecopy
