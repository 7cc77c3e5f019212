// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "onecopy/memory/tensor.h"
#include "transport/wire.h"

namespace onecopy {
class DeviceMemory;
}

namespace onecopy::transport {

/// A tensor whose bytes come from another host. Its memory is a row of bytes, since its layout may have gaps. The memory of
/// a large tensor is reserved part by part: all of it at once takes a second a GiB, in which the event loop serves nobody
/// else.
/// Thread safety: none of its own.
class ArrivingTensor {
 public:
  /// Allocates the tensor on its card if `takes_cards` is true and the card has room, and otherwise on the host. Throws
  /// out_of_memory.
  explicit ArrivingTensor(const Row& row, bool takes_cards = false);

  const Tensor& tensor() const noexcept { return tensor_; }
  std::size_t bytes() const noexcept { return tensor_.layout().extent_bytes(); }
  /// Reserves a further part of the memory if fewer than `bytes` bytes are reserved. Returns whether as many are. Throws
  /// out_of_memory.
  bool reserve(std::size_t bytes);

 private:
  DeviceMemory* memory_ = nullptr;  ///< the tensor's, where it is reserved part by part
  std::size_t reserved_ = 0;
  Tensor tensor_;
};

}  // namespace onecopy::transport
