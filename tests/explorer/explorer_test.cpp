// SPDX-License-Identifier: Apache-2.0
#include "explorer/explorer.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "explorer/expect.h"

namespace onecopy::explorer {
namespace {

std::set<std::tuple<int, int, int>> outcomes;

/// Two threads write one word and read the other's: sequential consistency forbids that both read 0.
struct StoreBuffer final : Scenario {
  Process process;
  Atomic<int> x, y;
  int a = -1, b = -1;
  StoreBuffer() {
    thread("first", process, [this] { x.store(1), a = y.load(); });
    thread("second", process, [this] { y.store(1), b = x.load(); });
  }
  void finish() override { outcomes.insert({a, b, 0}); }
};

/// The steps depend on each other enough for many outcomes, and are independent enough for a reduction to show.
struct Tangle final : Scenario {
  Process process;
  Atomic<int> x, y, z;
  Lock lock;
  int sum = 0;
  Tangle() {
    thread("adds", process, [this] { x.fetch_add(1), y.fetch_add(x.load()), z.load(); });
    thread("doubles", process, [this] {
      x.store(2 * x.load());
      lock.lock();
      sum = sum * 2 + 1;
      lock.unlock();
    });
    thread("copies", process, [this] {
      lock.lock();
      sum = sum * 3 + y.load();
      lock.unlock();
      z.store(x.load());
    });
  }
  void finish() override { outcomes.insert({x.load() * 100 + y.load(), z.load(), sum}); }
};

struct Killed final : Scenario {
  Process victim, other;
  Atomic<int> steps;
  int seen = -1;
  Killed() {
    thread("victim", victim, [this] { steps.fetch_add(1), steps.fetch_add(1), steps.fetch_add(1); });
    thread("killer", other, [this] { victim.kill(); });
    thread("watcher", other, [this] { victim.wait_until_gone(), seen = steps.load(); });
  }
  void finish() override {
    require(seen == steps.load(), "a dead thread went on");
    outcomes.insert({seen, 0, 0});
  }
};

struct DeadLock final : Scenario {
  Process process;
  Lock a, b;
  DeadLock() {
    thread("ab", process, [this] { a.lock(), b.lock(), b.unlock(), a.unlock(); });
    thread("ba", process, [this] { b.lock(), a.lock(), a.unlock(), b.unlock(); });
  }
  void finish() override {}
};

template <class S>
std::pair<Result, std::set<std::tuple<int, int, int>>> outcomes_of(bool reduce) {
  outcomes.clear();
  const Result result = explore<S>({.executions = 10'000'000, .reduce = reduce});
  EXPECT_TRUE(result.complete) << result.text();
  return {result, outcomes};
}

TEST(Explorer, IsSequentiallyConsistent) {
  ONECOPY_SKIP_IF_POINTLESS();
  const auto [result, seen] = outcomes_of<StoreBuffer>(false);
  EXPECT_EQ(result.executions, 6u);
  EXPECT_EQ(seen, (std::set<std::tuple<int, int, int>>{{0, 1, 0}, {1, 0, 0}, {1, 1, 0}}));
}

TEST(Explorer, ReductionLosesNoOutcome) {
  ONECOPY_SKIP_IF_POINTLESS();
  const auto [all, every_outcome] = outcomes_of<Tangle>(false);
  const auto [reduced, outcomes_left] = outcomes_of<Tangle>(true);
  EXPECT_EQ(outcomes_left, every_outcome);
  EXPECT_GT(every_outcome.size(), 10u);
  EXPECT_LT(reduced.executions + reduced.redundant, all.executions / 10);
  RecordProperty("executions",
                 std::to_string(all.executions) + " and " + std::to_string(reduced.executions));
}

TEST(Explorer, KillsBetweenAnyTwoSteps) {
  ONECOPY_SKIP_IF_POINTLESS();
  for (const bool reduce : {false, true})
    EXPECT_EQ(outcomes_of<Killed>(reduce).second.size(), 4u) << "0 to 3 steps, reduced: " << reduce;
}

TEST(Explorer, FindsADeadlock) {
  ONECOPY_SKIP_IF_POINTLESS();
  const Result result = explore<DeadLock>();
  EXPECT_NE(result.violation.find("waits for ever"), std::string::npos) << result.text();
}

}  // namespace
}  // namespace onecopy::explorer
