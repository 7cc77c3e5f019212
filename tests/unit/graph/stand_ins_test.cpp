// SPDX-License-Identifier: Apache-2.0
#include "graph/stand_ins.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "onecopy/core/device.h"

namespace onecopy::graph {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST(StandIns, DifferFromTheirOriginalsInEachBitThatMayCount) {
  const std::vector<Region> originals{
      {0x7f1234567000, 5 * kMiB}, {0x7f1200000200, 3}, {0x7f1299999900, kMiB}};
  const StandIns made(kCpu, originals);
  ASSERT_EQ(made.size(), originals.size());
  for (std::size_t i = 0; i < originals.size(); ++i)
    EXPECT_EQ((made.at(i) ^ originals[i].base) & (StandIns::kSpan - 1), StandIns::kSpan - 512) << i;
}

TEST(StandIns, OverlapNowhereAndAreNoTwoTheSameDistanceAway) {
  std::vector<Region> originals;
  for (std::uint64_t i = 0; i < 40; ++i) originals.push_back({0x7f0000000000 + i * 4 * kMiB, 2 * kMiB + i});
  const StandIns made(kCpu, originals);
  std::set<std::uint64_t> ways;
  for (std::size_t i = 0; i < originals.size(); ++i) {
    EXPECT_TRUE(ways.insert(made.at(i) - originals[i].base).second) << i;
    for (std::size_t j = 0; j < i; ++j)
      EXPECT_TRUE(made.at(i) > made.at(j) + originals[j].bytes ||
                  made.at(j) > made.at(i) + originals[i].bytes);
  }
}

TEST(StandIns, HaveMemoryFromTheFirstByteToTheLast) {
  const std::vector<Region> originals{{0x7f1234567000, 70 * kMiB}, {0x7f0000000000, 9}};
  const StandIns made(kCpu, originals);
  for (std::size_t i = 0; i < originals.size(); ++i)
    std::memset(reinterpret_cast<void*>(made.at(i)), 5, originals[i].bytes);
  EXPECT_EQ(*reinterpret_cast<unsigned char*>(made.at(0) + 70 * kMiB - 1), 5);
}

TEST(StandIns, OfNothingAreNone) { EXPECT_EQ(StandIns(kCpu, {}).size(), 0U); }

}  // namespace
}  // namespace onecopy::graph
