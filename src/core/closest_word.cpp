// SPDX-License-Identifier: Apache-2.0
#include "core/closest_word.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace onecopy {
namespace {

/// The max length of a word. A longer word is not a typing error, and the table of distances grows with its square.
constexpr std::size_t kLongest = 64;

/// Counts the letters to change, leave out, add or swap with a neighbour to turn `a` into `b`.
std::size_t distance(std::string_view a, std::string_view b) {
  const std::size_t columns = b.size() + 1;
  std::vector<std::size_t> table((a.size() + 1) * columns);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& { return table[i * columns + j]; };
  for (std::size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (std::size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({changed, at(i - 1, j) + 1, at(i, j - 1) + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  }
  return table.back();
}

}  // namespace

std::string_view closest_word(std::string_view word, std::span<const std::string_view> candidates) {
  if (word.size() > kLongest) return {};
  std::string_view closest;
  std::size_t least = word.size() / 3 + 1;
  for (const std::string_view candidate : candidates) {
    const std::size_t changes = distance(word, candidate);
    if (changes >= least) continue;
    least = changes;
    closest = candidate;
  }
  return closest;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates) {
  const std::string_view closest = closest_word(word, candidates);
  return closest.empty() ? std::string() : fmt::format("; did you mean \"{}\"?", closest);
}

}  // namespace onecopy
