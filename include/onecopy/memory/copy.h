// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/core/api.h"
#include "onecopy/core/tensor_view.h"
#include "onecopy/device/stream.h"

ONECOPY_API_BEGIN
namespace onecopy {

// Thread safety: both functions may be called concurrently for different targets.

/// Copies the elements of `from` into `to`, and waits until the copy is done. Both have the same dtype and
/// shape, any strides, and lie on the CPU or a device. Throws invalid_argument, read_only, and unsupported if there is
/// no way between these devices. REQUIRES: both stay unchanged until the function returns.
void copy_into(const TensorView& from, const TensorView& to);

/// Copies after all work in the stream, and does not wait for the copy. The stream belongs to the device that is
/// written to or, if that is the CPU, read from. The driver may still wait for host memory that is not pinned.
void copy_into(const TensorView& from, const TensorView& to, Stream stream);

}  // namespace onecopy
ONECOPY_API_END
