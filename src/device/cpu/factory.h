// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy {

/// The one CPU backend of this process.
Backend& cpu_backend();

}  // namespace onecopy
