// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "os/fd.h"
#include "os/mapping.h"
#include "store/format/record.h"

namespace onecopy::store {

/// The index: records one behind the other in a memfd that both halves of the keeper have. A record counts once its
/// size is written, which is the last step of append(): a writer that is killed before the size is written leaves no trace. A record whose
/// checksum is wrong ends the log.
///
/// Thread safety: none. Invariant: one process appends; bytes behind the last record are zero, or left by an append
/// that did not end. The file cannot shrink or grow, and no other process than the two halves ever has its
/// descriptor: a seal against writing would stop append().
class Log {
 public:
  static constexpr std::size_t kCapacity = std::size_t{1} << 20;

  Log() = default;
  static Log create(std::size_t capacity = kCapacity);
  /// Throws bad_handle for a descriptor that is not of a log.
  static Log open(Fd fd);

  /// Moves to the end of the records that another process has appended. REQUIRED before append() unless the caller is the only writer.
  void catch_up() noexcept;
  /// Returns false if there is no room; nothing is written then.
  bool append(const Record& record);
  void for_each(const std::function<void(const Record&)>& look) const;
  /// Bytes of all records.
  std::size_t used() const noexcept { return end_; }
  std::size_t capacity() const noexcept { return mapping_.size(); }
  const Fd& fd() const noexcept { return fd_; }

 private:
  Log(Fd fd, std::size_t capacity);
  /// The record at an offset, as bytes; empty at the end.
  ByteSpan at(std::size_t offset) const noexcept;

  Fd fd_;
  Mapping mapping_;
  std::size_t end_ = 0;
};

}  // namespace onecopy::store
