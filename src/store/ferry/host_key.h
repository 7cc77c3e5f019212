// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "onecopy/core/bytes.h"

namespace onecopy::store::ferry {

/// Returns the secrets in the file that ONECOPY_STORE_KEY_FILE names, one a line. The first one is used; hosts whose first one is
/// another of them are trusted, too, so that the key can be changed while they run. Throws invalid_argument.
std::vector<Bytes> store_keys();
/// Returns the secrets in that file. Throws invalid_argument.
std::vector<Bytes> keys_in(const std::string& path);

inline constexpr std::string_view kFabric = "ucx";

/// Returns whether ONECOPY_STORE_FABRIC lets the bytes of versions go over UCX, unencrypted. Throws invalid_argument for a value other
/// than tls and ucx, and unsupported without UCX.
bool is_over_ucx();

}  // namespace onecopy::store::ferry
