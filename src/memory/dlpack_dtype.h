// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/core/dtype.h"
#include "onecopy/memory/dlpack.h"

namespace onecopy {

DLDataType to_dl(DType dtype) noexcept;
/// Throws unsupported for dtypes that onecopy does not have.
DType from_dl(DLDataType dtype);

}  // namespace onecopy
