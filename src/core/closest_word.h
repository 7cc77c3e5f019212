// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace onecopy {

/// Returns the candidate that a mistyped word most likely means: at most a third of its letters are wrong, missing,
/// extra or swapped with their neighbour. Returns the first of equally close candidates, or an empty view if none is
/// close.
std::string_view closest_word(std::string_view word, std::span<const std::string_view> candidates);

/// Returns "; did you mean \"float32\"?" for the end of an error message, or nothing.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace onecopy
