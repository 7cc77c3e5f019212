// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "onecopy/core/dtype.h"

namespace onecopy {

/// The format's name of a dtype; empty for a dtype without one.
std::string_view safetensors_name(DType dtype) noexcept;
std::optional<DType> parse_safetensors_dtype(std::string_view name) noexcept;
/// Is it a name of the format for which onecopy has no dtype?
bool is_known_safetensors_dtype(std::string_view name) noexcept;

}  // namespace onecopy
