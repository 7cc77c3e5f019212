// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "onecopy/core/bytes.h"

namespace onecopy::store::ferry {

/// Returns the secrets in the file that ONECOPY_STORE_KEY_FILE names, one a line. The first one is used; hosts whose first one is
/// another of them are trusted, too, so that the key can be changed while they run. Throws invalid_argument.
std::vector<Bytes> store_keys();
/// Returns the secrets in that file. Throws invalid_argument.
std::vector<Bytes> keys_in(const std::string& path);

}  // namespace onecopy::store::ferry
