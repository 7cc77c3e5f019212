// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "device/graphs.h"
#include "driver.h"

namespace onecopy::cuda {

/// The parameter of the kernel, passed by value.
struct CopyTable {
  struct Row {
    std::uint64_t to = 0;
    std::uint64_t from = 0;
    std::uint64_t bytes = 0;
  };

  std::uint64_t count = 0;
  std::array<Row, GraphDriver::kMaxRanges> rows{};
};

/// A kernel that copies many ranges in one launch. Thread safety: const members may be called concurrently.
class CopyKernel {
 public:
  /// Loads the kernel. REQUIRES: the device's context is current, and nothing is captured.
  explicit CopyKernel(const Driver& driver);

  void* function() const noexcept { return function_; }

 private:
  void* function_ = nullptr;
};

/// The parameters of a launch, which point into the object: it is neither copied nor moved. Thread safety: none.
class CopyLaunch {
 public:
  /// Prepares a launch. Throws invalid_argument for more than GraphDriver::kMaxRanges ranges.
  CopyLaunch(const CopyKernel& kernel, std::span<const CopyRange> ranges);
  CopyLaunch& operator=(CopyLaunch&&) = delete;

  const CUDA_KERNEL_NODE_PARAMS& parameters() const noexcept { return parameters_; }

 private:
  CopyTable table_;
  void* arguments_[1] = {&table_};
  CUDA_KERNEL_NODE_PARAMS parameters_{};
};

}  // namespace onecopy::cuda
