// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/core/api.h"
#include "onecopy/core/device.h"
#include "onecopy/core/layout.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// The permission to write memory, enforced by how the memory was mapped: a write to read-only memory is a segmentation
/// fault of the program.
enum class Access : std::uint8_t { read_write = 0, read_only = 1 };

/// An array on memory that another library owns. The view does not keep the memory alive. `data` points at element 0.
struct TensorView {
  void* data = nullptr;
  Layout layout;
  Device device;
  Access access = Access::read_write;
};

}  // namespace onecopy
ONECOPY_API_END
