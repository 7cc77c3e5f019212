// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/core/dtype.h"
#include "onecopy/memory/dlpack.h"

namespace onecopy {

DLDataType to_dl(DType dtype) noexcept;
/// Returns the dtype. Throws unsupported if onecopy does not have it.
DType from_dl(DLDataType dtype);

}  // namespace onecopy
