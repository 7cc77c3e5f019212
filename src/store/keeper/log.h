// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <span>
#include <string>

#include "os/fd.h"
#include "os/file.h"
#include "store/format/record.h"

namespace onecopy::store {

/// The calls through which a keeper reads and changes the files of its index. Tests replace calls by ones that fail.
struct IndexCalls {
  Fd (*open)(const std::string&, int flags, unsigned mode) = open_file;
  void (*read)(const Fd&, std::span<std::byte>, std::uint64_t offset) = read_exactly;
  ssize_t (*pwrite)(int, const void*, std::size_t, off_t) = ::pwrite;
  int (*ftruncate)(int, off_t) = ::ftruncate;
  int (*rename)(const char*, const char*) = ::rename;
};
inline IndexCalls index_calls;

/// The index: a sequence of records in a file of the store's directory. What was appended outlives all processes of the
/// keeper, until the machine is started again or the file is deleted.
///
/// A record has its size and its checksum before it and is appended by one pwrite(), so a writer that is killed leaves
/// a whole record, or a rest that ends the log and that the next append() removes. The file is neither mapped nor
/// synchronised: a full disk is an error of append(), and the page cache survives the keeper.
///
/// Thread safety: none. Invariant: one process appends; the bytes after the last record remain from an append that was
/// interrupted.
class Log {
 public:
  /// The state in which a log was found.
  enum class State : std::uint8_t {
    whole,    ///< all records, up to the rest of an interrupted append
    damaged,  ///< records follow one that cannot be read, and are lost
  };

  Log() = default;
  /// Makes an empty log, in place of a file of that name. Throws out_of_memory (the disk is full), system.
  static Log create(const std::string& path);
  /// Opens a log. Throws bad_handle if the file is not a log that this build can read.
  static Log open(Fd fd);

  /// Moves to the end of the records that another process has appended. Must be called before append() unless the
  /// caller is the only writer.
  State catch_up();
  /// Appends a record. Throws out_of_memory if the disk is full, and system; the log has the same records as before
  /// then.
  void append(const Record& record);
  void for_each(const std::function<void(const Record&)>& visit) const;
  /// Returns the size of head and records in bytes.
  std::uint64_t used() const noexcept { return end_; }
  const Fd& fd() const noexcept { return fd_; }
  /// Returns whether a directory has the file of the log.
  bool has_name() const;
  /// Returns whether the log was made since the machine was started.
  bool is_of_this_boot() const;

 private:
  explicit Log(Fd fd) : fd_(std::move(fd)) {}
  /// Returns the bytes of the record at an offset; empty at the end. `next` becomes the offset behind
  /// the record or, if the file ends earlier, the offset that is missing.
  Bytes at(std::uint64_t offset, std::uint64_t& next) const;
  bool has_record_after(std::uint64_t offset, std::uint64_t size) const;
  void cut_rest() const;

  Fd fd_;
  std::uint64_t end_ = 0;
};

}  // namespace onecopy::store
