// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/log.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/memfd.h"
#include "os/process.h"

namespace onecopy::store {
namespace {

constexpr std::array<char, 8> kLogMagic{'1', 'c', 'o', 'p', 'y', 'i', 'd', 'x'};
constexpr std::uint32_t kLogVersion = 2;  // which contains all records of version 1
constexpr std::uint32_t kMaxRecord = 1u << 20;

/// The begin of the file.
struct FileHead {
  std::array<char, 8> magic = kLogMagic;
  std::uint32_t version = kLogVersion;
  std::uint32_t unused = 0;
  std::array<std::uint8_t, 16> boot{};
};

/// The fields before each record.
struct RecordHead {
  std::uint32_t size = 0;
  std::uint32_t crc = 0;
};

/// Writes all bytes at an offset. Throws out_of_memory if the disk is full, and system.
void write_at(const Fd& fd, ByteSpan bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t done =
        index_calls.pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0)
      throw_errno("cannot write the index in the directory of the store, and nothing was changed", errno,
                  errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? ErrorCode::out_of_memory
                                                                       : ErrorCode::system);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
}

}  // namespace

Log Log::create(const std::string& path) {
  ::unlink(path.c_str());  // another log may be open under this name
  Log log(index_calls.open(path, O_RDWR | O_CREAT | O_EXCL, 0600));
  const FileHead head{.boot = boot_id()};
  write_at(log.fd_, std::as_bytes(std::span(&head, 1)), 0);
  log.end_ = sizeof head;
  return log;
}

Log Log::open(Fd fd) {
  FileHead head{};
  try {
    index_calls.read(fd, std::as_writable_bytes(std::span(&head, 1)), 0);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::bad_file) throw;
    head.magic = {};
  }
  if (head.magic != kLogMagic || head.version == 0 || head.version > kLogVersion)
    throw Error(ErrorCode::bad_handle, "the file is not an index of the store that this build can read");
  Log log(std::move(fd));
  log.end_ = sizeof head;
  return log;
}

bool Log::is_of_this_boot() const {
  FileHead head{};
  index_calls.read(fd_, std::as_writable_bytes(std::span(&head, 1)), 0);
  return head.boot == boot_id();
}

Log::State Log::catch_up() {
  std::uint64_t next = end_;
  while (!at(end_, next).empty()) end_ = next;
  const std::uint64_t size = file_size(fd_);
  // An interrupted append ends before its record does, and nothing follows it.
  return end_ == size || (next > size && !has_record_after(end_, size)) ? State::whole : State::damaged;
}

/// Returns whether a record begins after an offset, which proves that the bytes at the offset were a whole record once.
bool Log::has_record_after(std::uint64_t offset, std::uint64_t size) const {
  if (size - offset > sizeof(RecordHead) + kMaxRecord) return true;
  std::uint64_t next = 0;
  while (++offset < size)
    if (!at(offset, next).empty()) return true;
  return false;
}

/// Removes the bytes after the last record, which would otherwise follow a shorter record.
void Log::cut_rest() const {
  if (file_size(fd_) != end_ && index_calls.ftruncate(fd_.get(), static_cast<off_t>(end_)) != 0)
    throw_errno("cannot remove the rest of an interrupted append from the index of the store", errno);
}

bool Log::has_name() const {
  struct stat status {};
  return ::fstat(fd_.get(), &status) == 0 && status.st_nlink != 0;
}

void Log::append(const Record& record) {
  const Bytes body = encode(record);
  const RecordHead head{static_cast<std::uint32_t>(body.size()), crc32c(body)};
  Bytes bytes(sizeof head + body.size());
  write_value(bytes.data(), head);
  std::copy(body.begin(), body.end(), bytes.begin() + sizeof head);
  point("store.index.append");
  cut_rest();
  try {
    write_at(fd_, bytes, end_);
  } catch (const Error&) {
    index_calls.ftruncate(fd_.get(),
                          static_cast<off_t>(end_));  // if that fails, the next append removes the rest
    throw;
  }
  point("store.index.committed");
  end_ += bytes.size();
}

Bytes Log::at(std::uint64_t offset, std::uint64_t& next) const {
  const std::uint64_t size = file_size(fd_);
  next = offset + sizeof(RecordHead);
  if (next > size) return {};
  RecordHead head{};
  index_calls.read(fd_, std::as_writable_bytes(std::span(&head, 1)), offset);
  if (head.size == 0 || head.size > kMaxRecord) return {};
  offset = std::exchange(next, next + head.size);
  if (next > size) return {};
  Bytes record(head.size);
  index_calls.read(fd_, record, offset);
  return crc32c(record) == head.crc ? record : Bytes();
}

void Log::for_each(const std::function<void(const Record&)>& visit) const {
  std::uint64_t next = 0;
  for (std::uint64_t offset = sizeof(FileHead); offset < end_; offset = next)
    visit(decode_record(at(offset, next)));
}

}  // namespace onecopy::store
