// SPDX-License-Identifier: Apache-2.0
#include "core/utf8.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace onecopy {
namespace {

std::size_t ascii_prefix(std::string_view text) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    std::uint64_t eight;
    std::memcpy(&eight, text.data() + i, sizeof eight);
    if ((eight & 0x8080808080808080u) != 0) return i;
  }
  return i;
}

constexpr std::size_t kNoCharacter = SIZE_MAX;  ///< an invalid first byte: more bytes than can follow

/// The number of bytes that may follow a first byte, and the range of the second one.
struct Follow {
  std::size_t count;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
};

Follow follow_of(unsigned char first) noexcept {
  if (first < 0x80) return {0};
  if (first < 0xC2) return {kNoCharacter};
  if (first < 0xE0) return {1};
  if (first == 0xE0) return {2, 0xA0, 0xBF};
  if (first == 0xED) return {2, 0x80, 0x9F};
  if (first < 0xF0) return {2};
  if (first == 0xF0) return {3, 0x90, 0xBF};
  if (first < 0xF4) return {3};
  if (first == 0xF4) return {3, 0x80, 0x8F};
  return {kNoCharacter};
}

bool follows(std::string_view rest, const Follow& follow) noexcept {
  if (follow.count > rest.size()) return false;
  for (std::size_t k = 0; k < follow.count; ++k) {
    const auto byte = static_cast<unsigned char>(rest[k]);
    const bool fits = k == 0 ? byte >= follow.low && byte <= follow.high : (byte & 0xC0) == 0x80;
    if (!fits) return false;
  }
  return true;
}

}  // namespace

bool is_utf8(std::string_view text) noexcept {
  for (std::size_t i = ascii_prefix(text); i < text.size();) {
    const Follow follow = follow_of(static_cast<unsigned char>(text[i]));
    if (!follows(text.substr(i + 1), follow)) return false;
    i += 1 + follow.count;
  }
  return true;
}

}  // namespace onecopy
