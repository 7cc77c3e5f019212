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
  std::uint32_t height =
      0;  ///< tuples within each other; a list or dict has no hash, and ends the recursion
  std::uint64_t parts = 1;  ///< hashes to compute, at most kMaxParts

  static constexpr std::uint64_t kMaxParts = std::uint64_t{1} << 32;
  /// A height that threads with small stacks survive, too.
  static constexpr std::uint32_t kMaxHeight = 1000;

  /// The cost of a tuple, or an object made of parts, before these are added.
  static constexpr HashCost of_container() noexcept { return {1, 1}; }
  constexpr void add(const HashCost& item) noexcept {
    height = std::max(height, item.height + 1);
    parts = std::min(parts + item.parts, kMaxParts);
  }
};

/// The parts of all keys in a message of so many bytes: above, its reader would hash for longer than it reads.
constexpr std::uint64_t max_key_parts(std::size_t message_bytes) noexcept {
  return (std::uint64_t{1} << 20) + 64 * static_cast<std::uint64_t>(message_bytes);
}

}  // namespace onecopy::value
