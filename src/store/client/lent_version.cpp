// SPDX-License-Identifier: Apache-2.0
#include "store/client/lent_version.h"

#include <utility>
#include <vector>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/memfd.h"
#include "os/read_lock.h"
#include "share/session.h"
#include "store/client/state.h"

namespace onecopy::store {
namespace {

/// Returns another open file of the same file, which is locked for reading.
Fd locked(const Fd& file) {
  Fd own = reopen_read_only(file);
  lock_for_reading(own);
  return own;
}

/// Returns memory of the host through an open file that is locked for reading.
ExportedMemory locked_on_host(ExportedMemory memory) {
  memory.fds.front() = locked(memory.fds.front());
  memory.kind = SegmentKind::sealed_file;
  return memory;
}

/// Returns memory of a card, whose descriptors cannot be locked, with an open file of the table that is.
ExportedMemory locked_on_card(ExportedMemory memory, const Fd& table) {
  memory.fds.push_back(locked(table));
  memory.kind = SegmentKind::cuda_sealed;
  return memory;
}

/// Returns the memory of a version that can be lent; nothing for others.
std::optional<ExportedMemory> lendable(Device device, const Table& table, std::vector<Fd> files) {
  if (table.parts.size() != 1 || table.parts.front().files != 1) return std::nullopt;
  const Fd table_file = files.front().duplicate();
  ExportedMemory memory = std::move(memory_of(table, std::move(files)).front());
  if (device == kCpu) return locked_on_host(std::move(memory));
  if (memory.kind == SegmentKind::cuda_vmm) return locked_on_card(std::move(memory), table_file);
  return std::nullopt;
}

/// Returns the memory that is lent, or null for a version that cannot be lent.
std::shared_ptr<LentMemory> make(const VersionRecord& version, const Reading& reading) {
  if (version.kind != VersionKind::copied) return nullptr;
  std::vector<Fd> files = reading.files_for_others();
  if (files.empty()) return nullptr;
  const Table table = OpenTable(files.front()).table;
  const Device device = device_of(table);
  std::optional<ExportedMemory> memory = lendable(device, table, std::move(files));
  return memory ? Session::current().lend(device, *std::move(memory)) : nullptr;
}

}  // namespace

/// Returns the segment of this process, or null.
std::shared_ptr<LentMemory> LentVersion::known() const {
  const LockGuard lock(mutex_);
  return memory_ && memory_->is_of_this_process() ? memory_ : nullptr;
}

/// Makes the segment without the lock, since the keeper may have to be asked. Of two threads that make one, both lend
/// from their own, and the later one stays. After an error, such as a lack of descriptors, the next call tries again.
std::shared_ptr<LentMemory> LentVersion::made(const VersionRecord& version, const Reading& reading) {
  if (is_copied_) return nullptr;
  std::shared_ptr<LentMemory> memory;
  try {
    memory = make(version, reading);
  } catch (const Error& error) {
    if (!has_failed_.exchange(true))
      log_warning("tensors of version {} of \"{}\" are sent as copies: {}", version.number, version.name,
                  error.what());
    return nullptr;
  }
  if (!memory) return is_copied_ = true, nullptr;
  std::shared_ptr<LentMemory> kept = memory;
  const LockGuard lock(mutex_);
  memory_.swap(kept);
  return memory;
}

BlockRef LentVersion::lend(const VersionRecord& version, const Reading& reading, const Bytes& bytes,
                           std::byte*& at) {
  std::shared_ptr<LentMemory> memory = known();
  if (!memory) memory = made(version, reading);
  return memory ? memory->lend(bytes.offset, bytes.size, at) : BlockRef();
}

}  // namespace onecopy::store
