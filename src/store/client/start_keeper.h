// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace onecopy::store {

/// Runs `COMMAND store serve --background`, which returns when clients can connect. Has no effect if another process
/// has started a keeper in between. Throws unsupported with the command's own words if it fails.
void start_keeper(const std::string& command);

}  // namespace onecopy::store
