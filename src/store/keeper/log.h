// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "os/fd.h"
#include "os/mapping.h"
#include "store/format/record.h"

namespace onecopy::store {

/// The index: a sequence of records in a memfd that both halves of the keeper hold. A record counts once its size is
/// written, which is the last step of append(): a writer that is killed before the size is written leaves no trace. A
/// record whose checksum is wrong ends the log.
///
/// Thread safety: none. Invariant: one process appends; the bytes after the last record are zero, or remain from an
/// append that was interrupted. The file cannot shrink or grow, and no other process than the two halves ever has its
/// descriptor: a seal against writing would stop append().
class Log {
 public:
  static constexpr std::size_t kCapacity = std::size_t{1} << 20;

  Log() = default;
  static Log create(std::size_t capacity = kCapacity);
  /// Opens a log. Throws bad_handle if the descriptor is not a log's.
  static Log open(Fd fd);

  /// Moves to the end of the records that another process has appended. Must be called before append() unless the
  /// caller is the only writer.
  void catch_up() noexcept;
  /// Appends a record. Returns false, with nothing written, if there is no room.
  bool append(const Record& record);
  void for_each(const std::function<void(const Record&)>& look) const;
  /// Returns the size of all records in bytes.
  std::size_t used() const noexcept { return end_; }
  std::size_t capacity() const noexcept { return mapping_.size(); }
  const Fd& fd() const noexcept { return fd_; }

 private:
  Log(Fd fd, std::size_t capacity);
  /// Returns the bytes of the record at an offset; empty at the end.
  ByteSpan at(std::size_t offset) const noexcept;

  Fd fd_;
  Mapping mapping_;
  std::size_t end_ = 0;
};

}  // namespace onecopy::store
