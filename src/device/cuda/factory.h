// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy {

/// Returns the CUDA backend of this process. It loads the driver at its first use.
Backend& cuda_backend();

}  // namespace onecopy
