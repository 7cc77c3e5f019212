// SPDX-License-Identifier: Apache-2.0
#include "os/read_lock.h"

#include <fcntl.h>

#include <cerrno>
#include <optional>

#include "onecopy/core/error.h"
#include "os/random.h"

namespace onecopy {
namespace {

constexpr off_t kBytes = off_t{1} << 62;  ///< of a file, as the locks see it
constexpr off_t kMarked = kBytes / 2;     ///< locks from here on have the mark

struct flock bytes_of(short type, off_t start, off_t length) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = length;
  return lock;
}

/// Returns a lock of another open file within the given bytes; F_UNLCK is the type of none. Returns nothing if the
/// system does not tell.
std::optional<struct flock> find_lock(const Fd& file, off_t start, off_t end) noexcept {
  struct flock lock = bytes_of(F_WRLCK, start, end - start);
  if (::fcntl(file.get(), F_OFD_GETLK, &lock) != 0) return std::nullopt;
  return lock;
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as the logarithm of the number of locks, on average
unsigned count_between(const Fd& file, off_t start, off_t end) noexcept {
  if (start >= end) return 0;
  const std::optional<struct flock> found = find_lock(file, start, end);
  if (!found) return 1;
  if (found->l_type == F_UNLCK) return 0;
  const off_t next = found->l_len == 0 ? end : found->l_start + found->l_len;
  return 1 + count_between(file, start, found->l_start) + count_between(file, next, end);
}

}  // namespace

void lock_for_reading(const Fd& file) { lock_for_reading(file, random_value<std::uint64_t>() % kMarked); }

void lock_for_reading_with_mark(const Fd& file) {
  lock_for_reading(file, kMarked + random_value<std::uint64_t>() % kMarked);
}

void lock_for_reading(const Fd& file, std::uint64_t byte) {
  struct flock lock = bytes_of(F_RDLCK, static_cast<off_t>(byte), 1);
  if (::fcntl(file.get(), F_OFD_SETLK, &lock) != 0) throw_errno("cannot lock shared memory", errno);
}

bool may_be_read(const Fd& file, std::uint64_t byte) noexcept {
  const auto start = static_cast<off_t>(byte);
  const std::optional<struct flock> found = find_lock(file, start, start + 1);
  return !found || found->l_type != F_UNLCK;
}

bool may_be_read(const Fd& file) noexcept {
  const std::optional<struct flock> found = find_lock(file, 0, kBytes);
  return !found || found->l_type != F_UNLCK;
}

unsigned count_read_locks(const Fd& file) noexcept { return count_between(file, 0, kBytes); }

unsigned count_marked_read_locks(const Fd& file) noexcept { return count_between(file, kMarked, kBytes); }

}  // namespace onecopy
