// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory/safetensors.h"

namespace onecopy {

/// Returns the text in a form for error messages: short, and in ASCII.
std::string printable(std::string_view text);

[[noreturn]] void refuse_safetensors(const std::string& why);

/// Fills `entries` (in the order of the JSON, without comparing byte ranges) and `metadata`. Throws bad_file,
/// unsupported.
void parse_safetensors_json(ByteSpan json, SafetensorsHeader& header);

}  // namespace onecopy
