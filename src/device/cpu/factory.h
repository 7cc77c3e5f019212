// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy {

/// Returns the CPU backend of this process.
Backend& cpu_backend();

}  // namespace onecopy
