// SPDX-License-Identifier: Apache-2.0
#include "share/owner/holds.h"

#include <gtest/gtest.h>

#include <set>

#include "unit/memory/counting_keeper.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;

TEST(Holds, KeepABlockUntilItHasArrived) {
  CountingKeeper keeper;
  Holds holds;
  const std::uint64_t nonce = holds.add(keeper.make());
  EXPECT_EQ(keeper.references, 1);
  EXPECT_EQ(holds.list().size(), 1u);
  holds.end(nonce);
  EXPECT_EQ(keeper.references, 0);
  EXPECT_TRUE(holds.list().empty());
}

TEST(Holds, EndOnceHoweverOftenTheyAreAcknowledged) {
  CountingKeeper keeper;
  Holds holds;
  const std::uint64_t first = holds.add(keeper.make());
  const std::uint64_t second = holds.add(keeper.make());
  for (int i = 0; i < 3; ++i) holds.end(first);
  holds.end(0);
  holds.end(first ^ second);
  EXPECT_EQ(keeper.references, 1);
  holds.end(second);
  EXPECT_EQ(keeper.references, 0);
}

TEST(Holds, HaveNoncesThatAreNever0AndNeverTheSame) {
  CountingKeeper keeper;
  Holds holds;
  std::set<std::uint64_t> nonces{0};
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(nonces.insert(holds.add(keeper.make())).second);
}

TEST(Holds, ExpireWhenTheirTimeIsOverAndNotBefore) {
  CountingKeeper keeper;
  Holds holds;
  const Holds::Clock::time_point start{};
  holds.add(keeper.make(), start);
  holds.add(keeper.make(), start + 1min);
  EXPECT_TRUE(holds.expire(start + Holds::kLifetime - 1ns));
  EXPECT_EQ(keeper.references, 2);
  EXPECT_TRUE(holds.expire(start + Holds::kLifetime));
  EXPECT_EQ(keeper.references, 1);
  EXPECT_EQ(holds.list(), std::vector{start + 1min});
  EXPECT_FALSE(holds.expire(start + 1min + Holds::kLifetime));
  EXPECT_EQ(keeper.references, 0);
}

TEST(Holds, LastWhenTheyAreToldTo) {
  CountingKeeper keeper;
  Holds holds;
  const Holds::Clock::time_point start{};
  const std::uint64_t lasting = holds.add(keeper.make(), start);
  holds.add(keeper.make(), start);
  holds.make_permanent(lasting);
  holds.make_permanent(lasting + 1);
  EXPECT_FALSE(holds.expire(start + 100 * Holds::kLifetime)) << "nothing is left that time will end";
  EXPECT_EQ(holds.list(), std::vector{start});
  EXPECT_EQ(keeper.references, 1);
  holds.end(lasting);
  EXPECT_EQ(keeper.references, 0);
}

TEST(Holds, ThatWaitForTheirOpenerAreNotEndedByTime) {
  CountingKeeper keeper;
  Holds holds;
  const Holds::Clock::time_point start{};
  const std::uint64_t nonce = holds.add(keeper.make(), start, Holds::Until::opened);
  EXPECT_FALSE(holds.expire(start + 100 * Holds::kLifetime)) << "nothing is left that time will end";
  EXPECT_EQ(keeper.references, 1);
  holds.end(nonce);
  EXPECT_EQ(keeper.references, 0);
}

TEST(Holds, OfAnAgeCanAllBeEnded) {
  CountingKeeper keeper;
  Holds holds;
  const Holds::Clock::time_point start{};
  holds.make_permanent(holds.add(keeper.make(), start));
  holds.add(keeper.make(), start);
  holds.make_permanent(holds.add(keeper.make(), start + 1s));
  holds.end_older(start);
  EXPECT_EQ(holds.list(), std::vector{start + 1s});
  EXPECT_EQ(keeper.references, 1);
}

TEST(Holds, AreAllGivenUpByAForkedChild) {
  CountingKeeper keeper;
  Holds holds;
  for (int i = 0; i < 10; ++i) holds.add(keeper.make());
  holds.clear();
  EXPECT_EQ(keeper.references, 0);
  EXPECT_FALSE(holds.expire());
}

}  // namespace
}  // namespace onecopy
