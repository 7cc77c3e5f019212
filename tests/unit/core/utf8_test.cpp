// SPDX-License-Identifier: Apache-2.0
#include "core/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace onecopy {
namespace {

/// Any code point below 2^21 in as many bytes as asked for, also when that is wrong.
std::string encoded(std::uint32_t code, int bytes) {
  if (bytes == 1) return {static_cast<char>(code)};
  const std::uint32_t marks[] = {0xC0, 0xE0, 0xF0};
  std::string text{static_cast<char>(marks[bytes - 2] | code >> 6 * (bytes - 1))};
  for (int i = bytes - 2; i >= 0; --i) text.push_back(static_cast<char>(0x80 | (code >> 6 * i & 63)));
  return text;
}

bool is_character(std::uint32_t code, int bytes) {
  const int shortest = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  return bytes == shortest && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
}

TEST(Utf8, AcceptsExactlyTheCodePointsInTheirShortestForm) {
  const std::uint32_t limits[] = {0, 0x80, 0x800, 0x10000, 0x200000};
  for (int bytes = 1; bytes <= 4; ++bytes)
    for (std::uint32_t code = 0; code < limits[bytes]; ++code)
      ASSERT_EQ(is_utf8(encoded(code, bytes)), is_character(code, bytes)) << code << " in " << bytes;
}

TEST(Utf8, RefusesStrayAndMissingBytesWhereverTheyStand) {
  const char* bad[] = {"\x80", "\xBF", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xF8\x88\x80\x80\x80", "\xFF"};
  for (const char* part : bad)
    for (std::size_t before = 0; before < 20; ++before)
      for (std::size_t after = 0; after < 10; ++after) {
        const std::string text = std::string(before, 'a') + part + std::string(after, 'b');
        ASSERT_FALSE(is_utf8(text)) << before << " " << after;
      }
}

TEST(Utf8, AcceptsTextOfEveryLength) {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(is_utf8(text));
    EXPECT_TRUE(is_utf8(text + "\xE2\x82\xAC"));
    EXPECT_TRUE(is_utf8("\xF0\x9F\x98\x80" + text));
    text.push_back(static_cast<char>('a' + i % 26));
  }
}

}  // namespace
}  // namespace onecopy
