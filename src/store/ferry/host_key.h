// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/core/bytes.h"

namespace onecopy::store::ferry {

/// Returns the secret in the file that ONECOPY_STORE_KEY_FILE names, without the end of its line. Throws invalid_argument.
Bytes store_key();

}  // namespace onecopy::store::ferry
