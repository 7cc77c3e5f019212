// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/core/tensor_view.h"
#include "onecopy/device/stream.h"

namespace onecopy {

// Thread safety: both may be called concurrently for different targets.

/// Copies the elements of `from` to where `to` has its own: same dtype and shape, any strides, each on the
/// CPU or on a device. Both must stay as they are until it returns. Throws invalid_argument, read_only,
/// unsupported (no way between these devices).
void copy_into(const TensorView& from, const TensorView& to);

/// The same, once all that is in the stream has been done, and without waiting for it. The stream belongs
/// to the device that is written to or, when that is the CPU, read from. Memory of the host that is not
/// pinned may make the driver wait all the same.
void copy_into(const TensorView& from, const TensorView& to, Stream stream);

}  // namespace onecopy
