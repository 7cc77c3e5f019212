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
#include "share/session.h"

namespace onecopy {

/// The segments of this process that no pool made: adopted memory of the host, which is one block, and memory of which a
/// LentSegment lends blocks, also of cards. Removes a segment with its last use. Thread safety: all members may be called
/// concurrently.
class LentSegments final : public ExtentOwner {
 public:
  explicit LentSegments(SegmentTable& segments) : segments_(segments) {}

  /// Adds a segment of the device with one use, which free() ends.
  std::uint32_t add(Device device, std::unique_ptr<DeviceMemory> memory);
  void add_use(std::uint32_t segment);
  void free(const Extent& extent) noexcept override;

 private:
  SegmentTable& segments_;
  Mutex mutex_;
  std::map<std::uint32_t, std::uint64_t> uses_ GUARDED_BY(mutex_);
};

/// A segment of which blocks are lent, see LentMemory.
class LentSegment final : public LentMemory {
 public:
  /// Takes memory of the device that cannot change and is mapped for reading.
  LentSegment(Device device, std::unique_ptr<DeviceMemory> memory, LentSegments& segments, Ledger& ledger);
  ~LentSegment() override;
  LentSegment& operator=(LentSegment&&) = delete;

  BlockRef lend(std::uint64_t offset, std::uint64_t bytes, std::byte*& at) override;
  bool is_of_this_process() const noexcept override { return current_pid() == pid_; }

 private:
  LentSegments& segments_;
  Ledger& ledger_;
  std::byte* const data_;
  const std::uint32_t segment_;
  const int pid_ = current_pid();
};

}  // namespace onecopy
