// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy {

/// The one CUDA backend of this process. It loads the driver when it is first used for anything.
Backend& cuda_backend();

}  // namespace onecopy
