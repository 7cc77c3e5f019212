// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace onecopy::value {

/// The cost of the hash of a value, as CPython computes it: recursively in C, without a check of the stack, and twice
/// for a tuple that occurs twice in another one. A few references to earlier tuples of a message can make a hash that
/// overflows the stack, or takes hours. Thread safety: as a value.
struct HashCost {
  /// The number of nested tuples; a list or dict has no hash and ends the recursion.
  std::uint32_t height = 0;
  std::uint64_t parts = 1;  ///< the number of hashes to compute, at most kMaxParts

  static constexpr std::uint64_t kMaxParts = std::uint64_t{1} << 32;
  /// The max height, which threads with small stacks survive, too.
  static constexpr std::uint32_t kMaxHeight = 1000;

  /// Returns the cost of a tuple, or of an object made of parts, before its parts are added.
  static constexpr HashCost of_container() noexcept { return {1, 1}; }
  constexpr void add(const HashCost& item) noexcept {
    height = std::max(height, item.height + 1);
    parts = std::min(parts + item.parts, kMaxParts);
  }
};

/// Returns the max number of parts of all keys in a message of that size, above which its reader would spend more time
/// on hashes than on reading.
constexpr std::uint64_t max_key_parts(std::size_t message_bytes) noexcept {
  return (std::uint64_t{1} << 20) + 64 * static_cast<std::uint64_t>(message_bytes);
}

}  // namespace onecopy::value
