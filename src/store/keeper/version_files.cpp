// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/version_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "core/throw_error.h"
#include "os/memfd.h"
#include "os/read_lock.h"
#include "store/format/message.h"

namespace onecopy::store {
namespace {

void check_seals(const Fd& fd, int wanted, const char* what) {
  if ((seals_of(fd) & wanted) != wanted)
    throw_error(ErrorCode::invalid_argument,
                "{} of a published version is not sealed: it could still be changed", what);
}

bool is_pipe(const Fd& fd) noexcept {
  struct stat status {};
  return ::fstat(fd.get(), &status) == 0 && S_ISFIFO(status.st_mode);
}

/// Returns whether the file is memory with a name, which cannot be sealed.
bool is_named(const Fd& fd) { return seals_of(fd) == F_SEAL_SEAL; }

void check_chunks_as_they_are(const VersionRecord& version, std::span<const Fd> fds) {
  for (const Fd& fd : fds)
    if (!is_pipe(fd) && !(version.kind == VersionKind::kv_pool && is_named(fd)))
      check_seals(fd, kSealShrink | kSealGrow, "a chunk");
}

/// Returns the descriptors of which readers lock open files.
std::span<const Fd> locked_by_readers(const VersionRecord& version, std::span<const Fd> files) noexcept {
  return version.kind == VersionKind::copied && version.device == "cpu" ? files : files.first(1);
}

}  // namespace

bool may_be_read(const VersionRecord& version, std::span<const Fd> files) noexcept {
  return std::ranges::any_of(locked_by_readers(version, files),
                             [](const Fd& file) { return onecopy::may_be_read(file); });
}

unsigned count_readers(const VersionRecord& version, std::span<const Fd> files) noexcept {
  unsigned sum = 0;
  for (const Fd& file : locked_by_readers(version, files)) sum += count_read_locks(file);
  return sum;
}

void lock_for_reader(const VersionRecord& version, const Fd& table, bool keeps) {
  if (keeps || version.needs_files()) lock_for_reading(table);
  else lock_for_reading_with_mark(table);
}

unsigned count_unkept(std::span<const Fd> files) noexcept { return count_marked_read_locks(files.front()); }

void check_files(const VersionRecord& version, std::span<const Fd> fds) {
  if (fds.empty()) throw Error(ErrorCode::invalid_argument, "a version came without its table");
  check_seals(fds.front(), kSealShrink | kSealGrow | kSealWrite, "the table");
  if (version.device != "cpu") return;
  if (version.kind != VersionKind::copied) return check_chunks_as_they_are(version, fds.subspan(1));
  std::uint64_t bytes = 0;
  for (const Fd& chunk : fds.subspan(1)) {
    check_seals(chunk, kSealShrink | kSealGrow | kSealWrite, "a chunk");
    bytes += file_size(chunk);
  }
  // The bytes beside the tensors are in the table.
  if (bytes > version.bytes || version.bytes - bytes > file_size(fds.front()))
    throw_error(ErrorCode::invalid_argument, "chunks of {} bytes came for a version of {}", bytes,
                version.bytes);
}

}  // namespace onecopy::store
