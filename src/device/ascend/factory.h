// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy {

/// Returns the Ascend backend of this process. It loads the ACL runtime at its first use.
Backend& ascend_backend();

}  // namespace onecopy
