// SPDX-License-Identifier: Apache-2.0
#include "core/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace onecopy {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr std::uint8_t kNoDigit = 255;

constexpr std::array<std::uint8_t, 256> make_digits() {
  std::array<std::uint8_t, 256> digits{};
  for (auto& digit : digits) digit = kNoDigit;
  for (std::size_t i = 0; i < kAlphabet.size(); ++i)
    digits[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
  return digits;
}

constexpr std::array<std::uint8_t, 256> kDigits = make_digits();

/// Appends the `count` characters that encode count - 1 bytes in the top of 24 bits.
void append_group(std::uint32_t bits, std::size_t count, std::string& out) {
  for (std::size_t i = 0; i < count; ++i) out.push_back(kAlphabet[bits >> (18 - 6 * i) & 63]);
}

}  // namespace

void append_base64url(ByteSpan bytes, std::string& out) {
  out.reserve(out.size() + (bytes.size() * 4 + 2) / 3);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < count; ++k)
      bits |= std::to_integer<std::uint32_t>(bytes[i + k]) << (16 - 8 * k);
    append_group(bits, count + 1, out);
  }
}

std::size_t decode_base64url(std::string_view text, Bytes& out) {
  out.reserve(out.size() + text.size() * 3 / 4);
  std::uint32_t bits = 0;
  unsigned waiting = 0;  // the number of bits that were read and not yet written
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::uint8_t digit = kDigits[static_cast<unsigned char>(text[i])];
    if (digit == kNoDigit) return i;
    bits = bits << 6 | digit;
    waiting += 6;
    if (waiting >= 8) {
      waiting -= 8;
      out.push_back(static_cast<std::byte>(bits >> waiting & 255));
    }
  }
  const bool complete = waiting < 6 && (bits & ((1u << waiting) - 1)) == 0;
  return complete ? std::string_view::npos : text.size() - 1;
}

}  // namespace onecopy
