// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy {

/// Returns the CUDA backend of this process. The backend loads the driver at the first use.
Backend& cuda_backend();

}  // namespace onecopy
