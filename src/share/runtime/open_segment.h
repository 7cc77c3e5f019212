// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "onecopy/core/device.h"
#include "onecopy/core/tensor_view.h"
#include "onecopy/device/segment_kind.h"

namespace onecopy {

class SharedKeeper;

/// A segment as this process has it open: Session::try_open() takes a block of it without a question. All zeros is one
/// that is not open yet, so a table of them may lie in fresh memory.
///
/// Thread safety: all members may be called concurrently. Session::note() writes it once; only the keeper may be
/// another one later, when its owner has died.
class OpenSegment {
 public:
  bool is_open() const noexcept { return keeper_.load(std::memory_order_acquire) != nullptr; }

 private:
  friend class Session;

  std::atomic<SharedKeeper*> keeper_;  ///< null until the rest is written
  std::atomic<bool> has_writer_;
  std::uint64_t segment_size_;
  std::uint32_t segment_;
  SegmentKind kind_;
  Access access_;
  Device device_;
};

}  // namespace onecopy
