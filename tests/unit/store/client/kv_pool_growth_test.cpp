// SPDX-License-Identifier: Apache-2.0
// The memory of a KV pool while users populate it, are stopped, killed and forked, and when the system has none.
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <list>
#include <set>
#include <thread>

#include "kv_pool_fixture.h"

namespace onecopy::store {
namespace {

using onecopy::testing::Child;
using onecopy::testing::eventually;
using onecopy::testing::Shared;

constexpr std::chrono::seconds kPatient{10};

/// A user that populates an extent until it may go on.
struct Grower {
  explicit Grower(const Fd& control)
      : pool(control, KvPoolOptions{.block_bytes = 8}, [this](std::uint64_t, std::uint64_t) {
          begun.set_value();
          may_end.get_future().wait();
          return true;
        }) {
    begun.get_future().wait();
  }

  std::promise<void> begun, may_end;
  KvPoolBlocks pool;
  std::jthread thread{[this] { EXPECT_EQ(pool.allocate(1).size(), 1u); }};
};

TEST_F(KvPoolTest, WaitsForTheMemoryThatAnotherUserPopulates) {
  Grower grower(control_);
  KvPoolBlocks patient(
      control_, KvPoolOptions{.block_bytes = 8},
      [this](std::uint64_t, std::uint64_t) { return ++populated_ != 0; }, std::chrono::seconds(10));
  std::jthread waits([&] {
    EXPECT_EQ(patient.allocate(1).size(), 1u);
    EXPECT_TRUE(patient.write(Keys{"a"}, 1).front());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  grower.may_end.set_value();
  waits.join();
  EXPECT_EQ(populated_, 0u);
}

TEST_F(KvPoolTest, PopulatesMemoryItselfIfAnotherUserIsStoppedInTheMiddle) {
  Grower grower(control_);
  KvPoolBlocks hurried(
      control_, KvPoolOptions{.block_bytes = 8},
      [this](std::uint64_t, std::uint64_t) { return ++populated_ != 0; }, std::chrono::milliseconds(1));
  EXPECT_EQ(hurried.allocate(kRecords).size(), kRecords);
  EXPECT_EQ(populated_, 1u);
  expect_refused([&] { hurried.allocate(1); }, ErrorCode::out_of_memory);
  grower.may_end.set_value();
  grower.thread.join();
}

TEST_F(KvPoolTest, EvictsWhenTheSystemHasNoMemoryForAnExtent) {
  const Numbers first = put_some({"a", "b"});
  has_memory_ = false;
  const Numbers more = pool_->allocate(kBlocks / 2);
  EXPECT_EQ(pool_->stats().evictions, 2u);
  expect_refused([&] { pool_->allocate(1); }, ErrorCode::out_of_memory);
  has_memory_ = true;
  EXPECT_EQ(pool_->allocate(1).size(), 1u);
}

struct Forked {
  std::atomic<int> populated, may_go_on, pid, got;
};

/// Populates an extent in one thread, and forks a child in another one, which allocates a block meanwhile.
void fork_while_populating(const Fd& control, Forked& state) {
  const auto populate = [&](std::uint64_t, std::uint64_t) {
    return ++state.populated != 1 || eventually([&] { return state.may_go_on != 0; });
  };
  KvPoolBlocks pool(control, KvPoolOptions{.block_bytes = 8}, populate, kPatient);
  const std::jthread grows([&] { pool.allocate(1); });
  ASSERT_TRUE(eventually([&] { return state.populated != 0; }));
  if (const int pid = ::fork(); pid != 0) {
    state.pid = pid;
    return;
  }
  state.got = static_cast<int>(pool.allocate(1).size());
  ::pause();
}

TEST_F(KvPoolTest, AForkOfAUserThatPopulatesWaitsForTheMemoryAndPopulatesItselfOnceThatUserIsKilled) {
  for (const bool is_killed : {false, true}) {
    const Shared<Forked> state;
    Child user([&] { fork_while_populating(control_, *state); });
    ASSERT_TRUE(eventually([&] { return state->pid != 0; }));
    ASSERT_EQ(state->got, 0);
    if (is_killed) user.kill();
    state->may_go_on = 1;
    EXPECT_TRUE(eventually([&] { return state->got == 1; }));
    EXPECT_EQ(state->populated, is_killed ? 2 : 1);
    ::kill(state->pid, SIGKILL);
    EXPECT_EQ(user.join(), is_killed ? -SIGKILL : 0);
    EXPECT_TRUE(eventually([&] { return pool_->stats().users == 1; }));
    EXPECT_EQ(pool_->stats().leased, 0u);
    EXPECT_EQ(pool_->allocate(kBlocks).size(), kBlocks);
    pool_.reset();
    control_ = KvPoolBlocks::make({2, kRecords, kBudget / 2});
    pool_.emplace(control_, KvPoolOptions{.block_bytes = 8});
  }
}

TEST_F(KvPoolTest, ForksOfAUserThatWaitsForTheMemoryOfAnotherOneGetBlocksOfTheirOwn) {
  Grower grower(control_);
  const Shared<std::array<std::atomic<std::uint32_t>, kRecords>> got;  // a number and 1
  const Shared<std::atomic<int>> populated;
  KvPoolBlocks waits(
      control_, KvPoolOptions{.block_bytes = 8},
      [&](std::uint64_t, std::uint64_t) { return ++*populated != 0; }, kPatient);
  const auto take = [&](std::size_t i) { (*got)[i] = waits.allocate(1).front() + 1; };
  std::jthread thread([&] { take(0); });
  std::list<Child> forks;
  for (std::size_t i = 1; i < kRecords - 1; ++i)
    forks.emplace_back([&, i] {
      take(i);
      ::pause();
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ((*got)[1], 0u);
  grower.may_end.set_value();
  thread.join();
  std::set<std::uint32_t> numbers;
  for (std::size_t i = 0; i < kRecords - 1; ++i) {
    ASSERT_TRUE(eventually([&] { return (*got)[i] != 0; }));
    numbers.insert((*got)[i]);
  }
  EXPECT_EQ(numbers.size(), kRecords - 1) << "and the grower has one";
  EXPECT_EQ(*populated, 0);
  EXPECT_EQ(pool_->stats().leased, kRecords);
}

}  // namespace
}  // namespace onecopy::store
