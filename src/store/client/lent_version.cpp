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

/// Returns the memory with an open file of its own, which is locked for reading.
ExportedMemory locked(ExportedMemory memory) {
  Fd own = reopen_read_only(memory.fds.front());
  lock_for_reading(own);
  memory.fds.front() = std::move(own);
  memory.kind = SegmentKind::sealed_file;
  return memory;
}

/// Returns the memory of a version that can be lent; nothing for others.
std::optional<ExportedMemory> lendable(const VersionRecord& version, std::vector<Fd> files) {
  if (files.empty() || version.kind != VersionKind::copied) return std::nullopt;
  const Table table = OpenTable(files.front()).table;
  if (device_of(table) != kCpu || table.parts.size() != 1 || table.parts.front().files != 1)
    return std::nullopt;
  return locked(std::move(memory_of(table, std::move(files)).front()));
}

std::shared_ptr<LentMemory> make(const VersionRecord& version, const Reading& reading) {
  try {
    std::optional<ExportedMemory> memory = lendable(version, reading.files_for_others());
    if (memory) return Session::current().lend(*std::move(memory));
  } catch (const Error& error) {
    log_warning("tensors of version {} of \"{}\" are sent as copies: {}", version.number, version.name,
                error.what());
  }
  return nullptr;
}

}  // namespace

/// Returns the segment of this process, or null.
std::shared_ptr<LentMemory> LentVersion::known() const {
  const LockGuard lock(mutex_);
  return memory_ && memory_->is_of_this_process() ? memory_ : nullptr;
}

/// Makes the segment without the lock, since the keeper may have to be asked. Of two threads that make one, both lend
/// from their own, and the later one stays.
BlockRef LentVersion::lend(const VersionRecord& version, const Reading& reading, const Bytes& bytes,
                           std::byte*& at) {
  std::shared_ptr<LentMemory> memory = known();
  if (!memory) {
    if (!is_copied_) memory = make(version, reading);
    if (!memory) return is_copied_ = true, BlockRef();
    std::shared_ptr<LentMemory> kept = memory;
    const LockGuard lock(mutex_);
    memory_.swap(kept);
  }
  return memory->lend(bytes.offset, bytes.size, at);
}

}  // namespace onecopy::store
