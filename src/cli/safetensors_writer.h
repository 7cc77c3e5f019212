// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "onecopy/core/layout.h"
#include "onecopy/share/bundle.h"

namespace onecopy::cli {

/// Length and JSON that start a safetensors file whose tensors follow in this order without gaps.
/// Throws unsupported for element types that the format does not know, invalid_argument for names
/// that repeat or are not UTF-8.
std::string safetensors_header(std::span<const std::pair<std::string, Layout>> tensors);

/// Writes beside `path` first and renames when all is written, so a half-written file never has the
/// final name.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors);

}  // namespace onecopy::cli
