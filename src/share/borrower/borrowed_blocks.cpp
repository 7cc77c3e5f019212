// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/borrowed_blocks.h"

#include <cerrno>
#include <utility>

#include "core/throw_error.h"
#include "os/one_descriptor.h"
#include "os/process.h"
#include "os/program_mark.h"
#include "share/owner/late_releases.h"
#include "share/owner/ledger.h"

namespace onecopy {

OwnerProcess::OwnerProcess(const ProcessId& id, std::string name, int pid, ProcessWatch watch)
    : id_(id), name_(std::move(name)), pid_(pid), watch_(std::move(watch)) {}

void OwnerProcess::set_table(Fd file) {
  const LockGuard lock(mutex_);
  table_inode_ = inode_of(file);
  table_ = one_descriptor_of(std::move(file));
}

/// Reads the start time late, since reading /proc takes up to a fifth of a connection's time. A value that was read
/// while the process lived belongs to that process, and not to a later one with the same number.
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
  return table_ ? table_.duplicate() : Fd();
}

bool OwnerProcess::has_ended() const noexcept {
  const LockGuard lock(mutex_);
  return !watch_ || watch_.has_ended();
}

void OwnerProcess::watch(EventLoop& loop, EventLoop::Task on_end) {
  const LockGuard lock(mutex_);
  watch_.start(loop, std::move(on_end));
}

void OwnerProcess::stop_watching() noexcept {
  const LockGuard lock(mutex_);
  watch_.stop();
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
  watch_ = {};
}

/// Throws owner_died if the owner has ended and the memory is of a weak kind, which the driver frees with the process
/// that allocated it.
void BorrowedBlocks::check_not_ended_with_owner(SegmentKind kind, std::uint32_t segment) const {
  if (!process_.is_gone() || !is_weak(kind)) return;
  throw_error(ErrorCode::owner_died,
              "process {}, which allocated segment {} with its device's own allocator, has ended, and such "
              "memory ends with its process; allocate with onecopy what must outlive it",
              process_.pid(), segment);
}

BorrowedBlocks::Location BorrowedBlocks::locate(const ClaimRequest& handle, Access access,
                                                std::optional<Device> user) {
  const BlockDescription r = leases_.describe(handle.block);
  if (r.segment != handle.segment || handle.storage_size > r.size)
    throw_error(ErrorCode::bad_handle,
                "the handle says segment {} with {} bytes, its owner's table says segment {} with {} bytes",
                handle.segment, handle.storage_size, r.segment, r.size);
  const SegmentPlace place = segments_.find(r.segment, access);
  if (!place) return {};
  check_not_ended_with_owner(place.kind, r.segment);
  if (place.kind != handle.kind || place.size != handle.segment_size)
    throw_error(
        ErrorCode::bad_handle,
        "the handle says that segment {} is of kind {} and has {} bytes; it is of kind {} and has {} bytes",
        r.segment, static_cast<int>(handle.kind), handle.segment_size, static_cast<int>(place.kind),
        place.size);
  if (r.offset > place.size || r.size > place.size - r.offset)
    throw Error(ErrorCode::protocol, "the owner's table names memory outside of its segment");
  const int ordinal = user.value_or(place.identity->device).index;
  std::byte* const begin = ordinal == place.user ? place.data : segments_.allow(r.segment, access, ordinal);
  return {begin + r.offset, place.identity};
}

void BorrowedBlocks::release(std::uint32_t block) noexcept {
  if (LateReleases* const late = LateReleases::active()) [[unlikely]]
    if (late->keep(*this, block, bytes_of(block, Access::read_write))) return;
  release_now(block);
}

void BorrowedBlocks::release_now(std::uint32_t block) noexcept {
  leases_.release(block, [this]() noexcept {
    if (process_.reports_releases() && on_release) on_release();
  });
}

/// Marks the segment as pinned for its owner, and waits until the owner is not giving pages of it back. A dead owner
/// reuses no memory, so it need not see the mark.
void BorrowedBlocks::begin_pin(std::uint32_t segment) {
  if (!leases_.is_seen() && !process_.has_ended()) throw_no_pins();
  leases_.note_pin(segment);
  try {
    wait_for_hole([&] { return leases_.is_hole_under_way(segment); },
                  [this] { return process_.has_ended(); });
  } catch (...) {
    leases_.end_pin(segment);
    throw;
  }
}

/// Exports a copy of the table if the owner has ended, since the descriptor was closed then.
Fd BorrowedBlocks::export_table() const {
  Fd table = process_.export_table();
  return table ? std::move(table) : leases_.copy_table();
}

ExportedBlock BorrowedBlocks::export_block(std::uint32_t block, Access access) {
  const BlockDescription r = leases_.describe(block);
  const SegmentPlace place = segments_.find_any(r.segment, access);
  check_not_ended_with_owner(place.kind, r.segment);
  return {{block, held_generation(r.word), r.segment, r.offset, r.size},
          place.kind,
          place.size,
          place.data + r.offset,
          place.identity};
}

std::span<std::byte> BorrowedBlocks::bytes_of(std::uint32_t block, Access access) {
  const BlockDescription r = leases_.describe(block);
  return {segments_.find_any(r.segment, access).data + r.offset, r.size};
}

std::byte* BorrowedBlocks::allow(std::uint32_t block, Access access, int ordinal) {
  const BlockDescription r = leases_.describe(block);
  std::byte* const segment = segments_.allow(r.segment, access, ordinal);
  return segment ? segment + r.offset : nullptr;
}

}  // namespace onecopy
