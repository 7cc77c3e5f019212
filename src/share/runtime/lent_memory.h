// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "memory/pool.h"
#include "onecopy/memory/block.h"
#include "os/mutex.h"
#include "os/process.h"
#include "share/owner/ledger.h"

namespace onecopy {

/// The segments of this process in which the lent blocks of LentMemory lie. Removes a segment with its last block and
/// its LentMemory. Thread safety: all members may be called concurrently.
class LentSegments final : public ExtentOwner {
 public:
  explicit LentSegments(SegmentTable& segments) : segments_(segments) {}

  /// Adds a segment with one use, which free() ends.
  std::uint32_t add(std::unique_ptr<DeviceMemory> memory);
  void add_use(std::uint32_t segment);
  void free(const Extent& extent) noexcept override;

 private:
  SegmentTable& segments_;
  Mutex mutex_;
  std::map<std::uint32_t, std::uint64_t> uses_ GUARDED_BY(mutex_);
};

/// Memory of another maker that no process can change, as a segment of this process: each lent block is shared, held and
/// freed like any block of this process. Costs a mapping, and a descriptor until the last block is free. Thread safety:
/// all members may be called concurrently. A forked child must make one of its own.
class LentMemory {
 public:
  /// Takes memory of kind sealed_file that is mapped for reading.
  LentMemory(std::unique_ptr<DeviceMemory> memory, LentSegments& segments, Ledger& ledger);
  ~LentMemory();
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  /// Returns a new block of these bytes, and sets `at` to its address. REQUIRES: they lie in the memory.
  BlockRef lend(std::uint64_t offset, std::uint64_t bytes, std::byte*& at);
  /// Returns whether this process made the object, and not its parent.
  bool is_of_this_process() const noexcept { return current_pid() == pid_; }

 private:
  LentSegments& segments_;
  Ledger& ledger_;
  std::byte* const data_;
  const std::uint32_t segment_;
  const int pid_ = current_pid();
};

}  // namespace onecopy
