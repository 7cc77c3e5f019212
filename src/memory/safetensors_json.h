// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory/safetensors.h"

namespace onecopy {

/// A name as it can stand in an error message: short, and in ASCII.
std::string printable(std::string_view text);

/// Fills `entries` (in the order of the JSON; byte ranges not yet compared) and `metadata`. Throws
/// bad_file, unsupported.
void parse_safetensors_json(ByteSpan json, SafetensorsHeader& header);

}  // namespace onecopy
