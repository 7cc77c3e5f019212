// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "share/owner/claim_memory.h"

namespace onecopy {
namespace {

using List = std::vector<std::uint64_t>;

TEST(TransitCounts, CountItemsAndNoteEachQueueOnce) {
  const Mapping page = private_claims();
  TransitCounts transits = transits_in(page);
  EXPECT_EQ(transits.channels(), List{});
  transits.begin(5, 77);
  transits.begin(5, 88);
  transits.begin(6, 77);
  EXPECT_EQ(transits.items(5), 2u);
  EXPECT_EQ(transits.items(6), 1u);
  EXPECT_EQ(transits.channels(), (List{77, 88}));
  transits.end(5);
  EXPECT_EQ(transits.items(5), 1u);
  EXPECT_EQ(transits.channels(), (List{77, 88}));
}

TEST(TransitCounts, DoNotGoBelowZeroInAForkedChild) {
  const Mapping page = private_claims();
  TransitCounts transits = transits_in(page);
  transits.end(3);
  EXPECT_EQ(transits.items(3), 0u);
}

TEST(TransitCounts, SayWhenTheQueuesWereTooMany) {
  const Mapping page = private_claims();
  TransitCounts transits = transits_in(page);
  for (std::uint64_t channel = 1; channel <= TransitCounts::kQueues; ++channel) transits.begin(0, channel);
  ASSERT_TRUE(transits.channels());
  EXPECT_EQ(transits.channels()->size(), TransitCounts::kQueues);
  transits.begin(0, 1);
  EXPECT_TRUE(transits.channels());
  transits.begin(0, 1000);
  EXPECT_FALSE(transits.channels());
}

TEST(TransitCounts, OfQueuesWhoseNumbersMeetInOnePlaceAreAllNoted) {
  const Mapping page = private_claims();
  TransitCounts transits = transits_in(page);
  for (std::uint64_t i = 0; i < 5; ++i)
    transits.begin(2, TransitCounts::kQueues - 1 + i * TransitCounts::kQueues);
  transits.begin(2, TransitCounts::kQueues - 1);
  List channels = *transits.channels();
  std::sort(channels.begin(), channels.end());
  const std::uint64_t n = TransitCounts::kQueues;
  EXPECT_EQ(channels, (List{n - 1, 2 * n - 1, 3 * n - 1, 4 * n - 1, 5 * n - 1}));
  EXPECT_EQ(transits.items(2), 6u);
}

TEST(TransitCounts, OfSeveralThreadsAreAllNoted) {
  const Mapping page = private_claims();
  TransitCounts transits = transits_in(page);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 10; ++i) transits.begin(9, 1 + (t + i) % 12);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(transits.items(9), 40u);
  List channels = *transits.channels();
  std::sort(channels.begin(), channels.end());
  EXPECT_EQ(channels, (List{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
}

}  // namespace
}  // namespace onecopy
