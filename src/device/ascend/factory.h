// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy {

/// The one Ascend backend of this process. It loads the ACL runtime when it is first used for anything.
Backend& ascend_backend();

}  // namespace onecopy
