// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "onecopy/core/bytes.h"

namespace onecopy::store::ferry {

/// Returns the secret in the file that ONECOPY_STORE_KEY_FILE names, without the end of its line. Throws invalid_argument.
Bytes store_key();
/// Returns the secret in that file. Throws invalid_argument.
Bytes key_in(const std::string& path);

}  // namespace onecopy::store::ferry
