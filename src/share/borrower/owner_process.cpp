// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/owner_process.h"

#include <cerrno>
#include <utility>

#include "onecopy/core/error.h"
#include "os/process.h"
#include "os/program_mark.h"

namespace onecopy {

OwnerProcess::OwnerProcess(const ProcessId& id, std::string name, int pid, Fd pidfd)
    : id_(id), name_(std::move(name)), pid_(pid), pidfd_(std::move(pidfd)) {}

void OwnerProcess::set_table(Fd file) {
  const LockGuard lock(mutex_);
  table_inode_ = inode_of(file);
  table_ = std::move(file);
}

/// Reading /proc takes up to a fifth of a connection's time, so it is read late. A value that was read while the
/// process lived belongs to that process, and not to a later one with the same number.
ProcessOrigin OwnerProcess::origin() const {
  if (const std::uint64_t known = start_time_) return {pid_, known};
  errno = 0;
  const std::uint64_t start_time = process_start_time(pid_);
  const int error = errno;
  if (has_ended()) return {pid_, 0};
  if (start_time == 0) throw_errno("cannot read /proc for when the owner of this memory started", error);
  start_time_ = start_time;
  return {pid_, start_time};
}

Fd OwnerProcess::export_table() const {
  const LockGuard lock(mutex_);
  return table_.duplicate();
}

bool OwnerProcess::has_ended() const noexcept {
  const LockGuard lock(mutex_);
  return !pidfd_ || has_exited(pidfd_);
}

bool OwnerProcess::has_lost_mark() const noexcept {
  const LockGuard lock(mutex_);
  return table_ && !may_be_marked(table_, table_inode_);
}

void OwnerProcess::close_table() noexcept {
  const LockGuard lock(mutex_);
  table_.reset();
}

void OwnerProcess::forget() noexcept {
  const LockGuard lock(mutex_);
  pidfd_.reset();
}

}  // namespace onecopy
