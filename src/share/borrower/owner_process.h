// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "onecopy/share/handle_fields.h"
#include "os/fd.h"
#include "os/mutex.h"
#include "os/process_origin.h"

namespace onecopy {

/// The process that owns borrowed memory: who it is, its block table, and whether it or its program has ended.
///
/// Thread safety: all members may be called concurrently, but for set_table().
class OwnerProcess {
 public:
  /// `name` is public_name() of `id`. Without a `pidfd` the process has ended.
  OwnerProcess(const ProcessId& id, std::string name, int pid = 0, Fd pidfd = {});

  /// REQUIRES: called once, before all other members.
  void set_table(Fd file);

  const ProcessId& id() const noexcept { return id_; }
  const std::string& name() const noexcept { return name_; }
  int pid() const noexcept { return pid_; }
  /// The descriptor of the process. REQUIRES: forget() has not been called.
  int pidfd() const noexcept NO_THREAD_SAFETY_ANALYSIS { return pidfd_.get(); }
  /// Reads the start time when it is first asked for. Throws if that cannot be read.
  ProcessOrigin origin() const;
  /// Duplicates the descriptor of the block table.
  Fd export_table() const;

  /// Returns whether the process has ended. Asks the kernel and not the watch thread.
  bool has_ended() const noexcept;
  /// Returns whether the owner has stopped to map its block table: its program has ended, perhaps by exec. Its device
  /// may still be at work.
  bool has_lost_mark() const noexcept;
  /// The watch thread has seen the end of the owner: its memory is frozen.
  bool is_gone() const noexcept { return gone_; }
  void set_gone() noexcept { gone_ = true; }

  /// Gives the descriptor of the block table back.
  void close_table() noexcept;
  /// Gives the descriptor of the process back.
  void forget() noexcept;

  // Around a fork.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

 private:
  const ProcessId id_;
  const std::string name_;
  const int pid_;
  mutable std::atomic<std::uint64_t> start_time_{0};  ///< 0: not known yet
  std::atomic<bool> gone_{false};
  mutable Mutex mutex_;  ///< held while a descriptor is used or given back
  Fd pidfd_ GUARDED_BY(mutex_);
  Fd table_ GUARDED_BY(mutex_);
  std::uint64_t table_inode_ = 0;
};

}  // namespace onecopy
