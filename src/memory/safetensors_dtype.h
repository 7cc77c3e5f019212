// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "onecopy/core/dtype.h"

namespace onecopy {

/// Returns the format's name of a dtype; empty if there is none.
std::string_view safetensors_name(DType dtype) noexcept;
std::optional<DType> parse_safetensors_dtype(std::string_view name) noexcept;
/// Returns whether the format has this name, but onecopy no dtype for it.
bool is_known_safetensors_dtype(std::string_view name) noexcept;

}  // namespace onecopy
