// SPDX-License-Identifier: Apache-2.0
#include "memory/page_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace onecopy {
namespace {

using Kind = PageRuns::Kind;

constexpr PoolTime at(int seconds) { return PoolTime{} + std::chrono::seconds(seconds); }

TEST(PageRuns, TakesTheSmallestRunThatFitsAndKeepsTheRest) {
  PageRuns runs;
  runs.put({1, 0, 10}, Kind::warm, at(1));
  runs.put({1, 20, 5}, Kind::warm, at(1));
  const auto run = runs.take_warm(4);
  ASSERT_TRUE(run);
  EXPECT_EQ(run->first, 20u);
  EXPECT_EQ(run->pages, 4u);
  EXPECT_EQ(runs.warm_pages(), 11u);
  EXPECT_EQ(runs.take_warm(1)->first, 24u);
  EXPECT_FALSE(runs.take_warm(11));
}

TEST(PageRuns, WhatIsNotTakenOfAnIdleRunStaysWarmAndOfItsAge) {
  PageRuns runs;
  runs.put({1, 0, 40}, Kind::warm, at(1));
  runs.put({2, 0, 50}, Kind::warm, at(1));
  const auto taken = runs.take_idle(at(2), 32, 60);
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].pages + taken[1].pages, 60u);
  EXPECT_EQ(runs.warm_pages(), 30u);
  for (const PageRun& run : taken) runs.put(run, Kind::cold);
  const auto rest = runs.take_idle(at(1), 32);
  ASSERT_EQ(rest.size(), 1u) << "beside a cold run";
  EXPECT_EQ(rest[0].segment, 2u);
  EXPECT_EQ(rest[0].first, 20u);
  EXPECT_EQ(rest[0].pages, 30u);
}

TEST(PageRuns, NeighboursOfOneKindAndSegmentJoin) {
  PageRuns runs;
  runs.put({1, 0, 4}, Kind::warm, at(1));
  runs.put({1, 8, 4}, Kind::warm, at(1));
  runs.put({2, 12, 4}, Kind::warm, at(1));
  runs.put({1, 4, 4}, Kind::warm, at(2));
  EXPECT_EQ(runs.take_warm(12)->first, 0u);
  EXPECT_EQ(runs.take_warm(4)->segment, 2u);
  EXPECT_EQ(runs.warm_pages(), 0u);
}

TEST(PageRuns, AGrowingRunUsesTheWarmPagesBeforeTheColdOnes) {
  PageRuns runs;
  runs.put({1, 0, 100}, Kind::cold);
  const auto first = runs.take_cold(10, 20);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->run.pages, 20u);
  EXPECT_EQ(first->warm, 0u);
  runs.put({1, 15, 5}, Kind::warm, at(1));
  const auto second = runs.take_cold(10, 1);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->run.first, 15u);
  EXPECT_EQ(second->warm, 5u);
  EXPECT_EQ(second->run.pages, 10u);
  runs.put_back(*second);
  EXPECT_EQ(runs.warm_pages(), 5u);
  EXPECT_EQ(runs.take_cold(80, 0)->run.first, 15u);
}

TEST(PageRuns, TheLargerPartGivesTheAge) {
  PageRuns runs;
  runs.put({1, 0, 100}, Kind::warm, at(1));
  runs.put({1, 100, 5}, Kind::warm, at(50));
  EXPECT_EQ(runs.take_idle(at(2), 1).size(), 1u);
  runs.put({1, 0, 5}, Kind::warm, at(1));
  runs.put({1, 5, 100}, Kind::warm, at(50));
  EXPECT_TRUE(runs.take_idle(at(2), 1).empty());
}

TEST(PageRuns, ShortRunsAreWorthReturningOnlyBesideColdOnes) {
  PageRuns runs;
  runs.put({1, 0, 4}, Kind::warm, at(1));
  EXPECT_FALSE(runs.has_returnable(32));
  EXPECT_TRUE(runs.take_idle(at(9), 32).empty());
  runs.put({1, 4, 4}, Kind::cold);
  EXPECT_TRUE(runs.has_returnable(32));
  EXPECT_TRUE(runs.take_idle(at(0), 32).empty());
  EXPECT_EQ(runs.take_idle(at(9), 32).size(), 1u);
  EXPECT_FALSE(runs.has_returnable(1));
}

TEST(PageRuns, ASegmentIsDoneWhenItIsOneColdRun) {
  PageRuns runs;
  runs.put({1, 0, 6}, Kind::cold);
  EXPECT_FALSE(runs.take_if_all_cold(1, 10));
  runs.put({1, 6, 4}, Kind::cold);
  EXPECT_FALSE(runs.take_if_all_cold(2, 10));
  EXPECT_TRUE(runs.take_if_all_cold(1, 10));
  EXPECT_FALSE(runs.take_cold(1, 1));
}

/// Each page is in exactly one place, after any change.
TEST(PageRuns, NoPageIsEverLostOrGivenOutTwice) {
  constexpr std::uint32_t kPages = 300;
  enum class Page { cold, warm, taken };
  std::vector<Page> pages(kPages, Page::cold);
  std::vector<PageRun> taken;
  PageRuns runs;
  runs.put({1, 0, kPages}, Kind::cold);
  std::mt19937 source(5);
  const auto random = [&] { return static_cast<std::uint32_t>(source()); };
  const auto mark = [&](const PageRun& run, Page from, Page to) {
    for (std::uint32_t i = run.first; i < run.first + run.pages; ++i) {
      ASSERT_EQ(pages[i], from);
      pages[i] = to;
    }
  };
  for (int step = 0; step < 20'000; ++step) {
    const std::uint32_t want = 1 + random() % 20;
    switch (random() % 4) {
      case 0:
        if (const auto run = runs.take_warm(want)) {
          mark(*run, Page::warm, Page::taken);
          taken.push_back(*run);
        }
        break;
      case 1:
        if (const auto growth = runs.take_cold(want, random() % 30)) {
          ASSERT_GE(growth->run.pages, want);
          mark({1, growth->run.first, growth->warm}, Page::warm, Page::taken);
          mark({1, growth->run.first + growth->warm, growth->run.pages - growth->warm}, Page::cold,
               Page::taken);
          taken.push_back(growth->run);
        }
        break;
      case 2:
        if (!taken.empty()) {
          std::swap(taken[random() % taken.size()], taken.back());
          runs.put(taken.back(), Kind::warm, at(step));
          mark(taken.back(), Page::taken, Page::warm);
          taken.pop_back();
        }
        break;
      default:
        for (const PageRun& run : runs.take_idle(at(step - 50), 8)) {
          mark(run, Page::warm, Page::cold);
          runs.put(run, Kind::cold);
        }
    }
    ASSERT_EQ(runs.warm_pages(),
              static_cast<std::uint64_t>(std::count(pages.begin(), pages.end(), Page::warm)));
  }
}

TEST(PageRuns, NoRunReachesOverAWall) {
  PageRuns runs(16);
  runs.put({1, 0, 64}, Kind::cold);
  EXPECT_FALSE(runs.take_cold(17, 0)) << "no room for it between two walls";
  const auto growth = runs.take_cold(10, 40);
  ASSERT_TRUE(growth);
  EXPECT_EQ(growth->run.pages, 16u) << "what is reserved ahead ends at the wall";
  runs.put({1, 0, 16}, Kind::warm, at(1));
  runs.put({1, 16, 3}, Kind::warm, at(1));
  EXPECT_EQ(runs.warm_pages(), 19u);
  EXPECT_FALSE(runs.take_warm(17)) << "they touch at a wall, and are two";
  EXPECT_EQ(runs.take_warm(16)->first, 0u);
}

TEST(PageRuns, ASegmentWithWallsIsColdWhenAllOfItIs) {
  PageRuns runs(16);
  runs.put({1, 0, 40}, Kind::cold);
  EXPECT_FALSE(runs.take_if_all_cold(1, 64));
  runs.put({1, 40, 24}, Kind::cold);
  EXPECT_TRUE(runs.take_if_all_cold(1, 64));
  EXPECT_FALSE(runs.take_cold(1, 0)) << "it is out of here";
}

}  // namespace
}  // namespace onecopy
