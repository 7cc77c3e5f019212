// SPDX-License-Identifier: Apache-2.0
#include "os/poly1305.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace onecopy {
namespace {

std::uint8_t nibble(char c) { return static_cast<std::uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10); }

template <class T>
T from_hex(std::string_view text) {
  T bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(nibble(text[2 * i]) << 4 | nibble(text[2 * i + 1]));
  return bytes;
}

ByteSpan bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Poly1305, IsTheOneOfRfc8439) {
  const auto key = from_hex<Digest>("85d6be7857556d337f4452fe42d506a80103808afb0db2fd4abff6af4149f51b");
  EXPECT_EQ(poly1305(key, {bytes_of("Cryptographic Forum Research Group")}),
            from_hex<ShortMac>("a8061dc1305136c6c22b8baf0c0127a9"));
}

/// RFC 8439, appendix A.3, cases 7 to 9: sums at the modulus.
TEST(Poly1305, ReducesSumsAtTheModulus) {
  Digest key{};
  key[0] = 1;
  const auto all = from_hex<ShortMac>("ffffffffffffffffffffffffffffffff");
  const auto f0 = from_hex<ShortMac>("f0ffffffffffffffffffffffffffffff");
  const auto eleven = from_hex<ShortMac>("11000000000000000000000000000000");
  const auto span = [](const ShortMac& block) { return std::as_bytes(std::span(block)); };
  EXPECT_EQ(poly1305(key, {span(all), span(f0), span(eleven)}),
            from_hex<ShortMac>("05000000000000000000000000000000"));
  const auto fb = from_hex<ShortMac>("fbfefefefefefefefefefefefefefefe");
  const auto ones = from_hex<ShortMac>("01010101010101010101010101010101");
  EXPECT_EQ(poly1305(key, {span(all), span(fb), span(ones)}), ShortMac{});
  key[0] = 2;
  const auto fd = from_hex<ShortMac>("fdffffffffffffffffffffffffffffff");
  EXPECT_EQ(poly1305(key, {span(fd)}), from_hex<ShortMac>("faffffffffffffffffffffffffffffff"));
}

TEST(Poly1305, OfPartsIsThatOfTheWhole) {
  const Digest key = sha256(bytes_of("a key"));
  const std::string text(1000, 'x');
  const ByteSpan whole = bytes_of(text);
  EXPECT_EQ(poly1305(key, {whole}), poly1305(key, {whole.first(160), whole.subspan(160)}));
}

/// A long text goes through lanes where the processor has them, its parts do not.
TEST(Poly1305, OfALongTextIsThatOfItsShortParts) {
  Digest key = sha256(bytes_of("another key"));
  std::string text(4096 + 48 + 5, '\0');
  for (int round = 0; round < 200; ++round) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool is_full = round % 3 == 0;  // sums near the modulus
      text[i] = static_cast<char>(is_full ? 0xff : key[i % key.size()] + i * (7 + i / 256));
    }
    const std::size_t size = text.size() - static_cast<std::size_t>(round % 100);
    const ByteSpan whole = bytes_of(text).first(size);
    // Of parts that are too short for lanes.
    const auto part = [&](std::size_t i) {
      return whole.subspan(i * 1008, std::min<std::size_t>(1008, size - i * 1008));
    };
    EXPECT_EQ(poly1305(key, {whole}),
              poly1305(key, {part(0), part(1), part(2), part(3), whole.subspan(4032)}));
    key = sha256(std::as_bytes(std::span(key)));
  }
}

}  // namespace
}  // namespace onecopy
