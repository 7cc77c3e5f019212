// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "onecopy/core/device.h"
#include "onecopy/core/tensor_view.h"
#include "onecopy/device/segment_kind.h"

namespace onecopy {

class BorrowedBlocks;

/// A segment as this process has it open: Session::try_open() takes a block of it without a question. All zeros is a
/// segment that is not open yet, so a table of them may lie in fresh memory.
///
/// Thread safety: all members may be called concurrently. Session::note() writes it for an epoch of the caller's, for
/// which it stays. Only the blocks may be replaced or taken out later, when their owner has died.
class OpenSegment {
 public:
  bool is_open(std::uint32_t epoch) const noexcept { return stamp_.load() == stamp_of(epoch); }
  /// Takes the blocks out, which are about to go. Callers of try_open() that began later do not see them.
  void close() noexcept { stamp_.store(0); }

 private:
  friend class Session;

  static constexpr std::uint64_t kWriting = 1;
  static std::uint64_t stamp_of(std::uint32_t epoch) noexcept { return std::uint64_t{epoch} + 2; }

  std::atomic<std::uint64_t> stamp_;     ///< epoch for which the other fields are written
  std::atomic<BorrowedBlocks*> blocks_;  ///< null for memory of this process
  std::atomic<std::uint64_t> segment_size_;
  std::atomic<std::uint32_t> segment_;
  std::atomic<SegmentKind> kind_;
  std::atomic<Access> access_;
  std::atomic<DeviceType> device_type_;
  std::atomic<std::int16_t> device_index_;
};

}  // namespace onecopy
