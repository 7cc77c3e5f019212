// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "onecopy/core/bytes.h"
#include "os/host_port.h"

namespace onecopy::cli {

/// Returns the secret in the file that ONECOPY_STORE_KEY_FILE names, without the end of its line. Throws invalid_argument.
Bytes store_key();
/// Parses the address of another host: "10.0.0.1:7000", "[fd00::1]:7000" or "trainer:7000". Throws invalid_argument.
HostPort host_port(const std::string& text);

}  // namespace onecopy::cli
