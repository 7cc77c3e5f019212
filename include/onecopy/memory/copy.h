// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/core/tensor_view.h"
#include "onecopy/device/stream.h"

namespace onecopy {

// Thread safety: both may be called concurrently for different targets.

/// Copies the elements of `from` to those of `to`: equal dtype and shape, any strides, each on the CPU or on a
/// device. Throws invalid_argument, read_only, unsupported (no way between these devices). REQUIRES: both stay as
/// they are until it returns.
void copy_into(const TensorView& from, const TensorView& to);

/// Copies after all work in the stream, and without waiting for it. The stream belongs to the device that is written
/// to or, if that is the CPU, read from. The driver may still wait for memory of the host that is not pinned.
void copy_into(const TensorView& from, const TensorView& to, Stream stream);

}  // namespace onecopy
