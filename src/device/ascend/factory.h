// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy {

/// Returns the Ascend backend of this process. The backend loads the ACL runtime at the first use.
Backend& ascend_backend();

}  // namespace onecopy
