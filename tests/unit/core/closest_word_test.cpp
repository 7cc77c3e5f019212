// SPDX-License-Identifier: Apache-2.0
#include "core/closest_word.h"

#include <gtest/gtest.h>

#include <array>

namespace onecopy {
namespace {

constexpr std::array<std::string_view, 4> kWords{"float16", "float32", "share", "open"};

TEST(ClosestWord, IsFoundBehindOneError) {
  EXPECT_EQ(closest_word("flaot32", kWords), "float32");  // swapped
  EXPECT_EQ(closest_word("shar", kWords), "share");       // left out
  EXPECT_EQ(closest_word("oopen", kWords), "open");       // added
  EXPECT_EQ(closest_word("shsre", kWords), "share");      // changed
  EXPECT_EQ(closest_word("float32", kWords), "float32");
}

TEST(ClosestWord, IsTheNearestOfSeveral) {
  EXPECT_EQ(closest_word("float3", kWords), "float32");
  EXPECT_EQ(closest_word("float1", kWords), "float16");
}

TEST(ClosestWord, IsNoneForAWordOfAnotherKind) {
  EXPECT_EQ(closest_word("sing", kWords), "");
  EXPECT_EQ(closest_word("op", kWords), "");
  EXPECT_EQ(closest_word("", kWords), "");
  EXPECT_EQ(closest_word(std::string(100'000, 'o'), kWords), "");
  EXPECT_EQ(closest_word("open", {}), "");
}

TEST(ClosestWord, EndsAMessage) {
  EXPECT_EQ(did_you_mean("opne", kWords), "; did you mean \"open\"?");
  EXPECT_EQ(did_you_mean("sing", kWords), "");
}

}  // namespace
}  // namespace onecopy
