// SPDX-License-Identifier: Apache-2.0
// Leases, keys and eviction of an arena; users that die at each named point; random programs beside a model.
#include "store/client/arena_blocks.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/mapping.h"
#include "os/memfd.h"
#include "support/child.h"
#include "support/die_at.h"

namespace onecopy::store {
namespace {

using onecopy::testing::Child;
using onecopy::testing::Shared;
using Numbers = std::vector<std::uint32_t>;

constexpr std::uint32_t kBlocks = 16;

class ArenaBlocksTest : public ::testing::Test {
 protected:
  ArenaBlocksTest()
      : memory_(Mapping::of(create_memfd("arena", ArenaBlocks::bytes_for(kBlocks)),
                            ArenaBlocks::bytes_for(kBlocks), Access::read_write)) {
    ArenaBlocks::init(memory_.data(), kBlocks, 8);
    arena_.emplace(memory_.data(), memory_.size(), kBlocks, 8);
  }
  std::optional<Numbers> find(const std::string& key) {
    auto found = arena_->find(std::span(&key, 1));
    return found.empty() ? std::nullopt : std::optional(found.front());
  }
  template <class Call>
  void expect_refused(Call&& call, ErrorCode code = ErrorCode::invalid_argument) {
    try {
      call();
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
    }
  }

  Mapping memory_;
  std::optional<ArenaBlocks> arena_;
};

TEST_F(ArenaBlocksTest, GivesEachBlockOnce) {
  const Numbers all = arena_->allocate(kBlocks);
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), kBlocks);
  expect_refused([&] { arena_->allocate(1); }, ErrorCode::out_of_memory);
  arena_->release(all);
  EXPECT_EQ(arena_->stats().free, kBlocks);
}

/// Makes the arena one of another PID namespace.
void move_to_another_namespace(const Mapping& memory) {
  ++reinterpret_cast<ArenaHeader*>(memory.data())->pid_namespace;
}

TEST_F(ArenaBlocksTest, IsRefusedInAnotherNamespaceWithNothingChanged) {
  arena_->allocate(3);
  move_to_another_namespace(memory_);
  expect_refused([&] { ArenaBlocks(memory_.data(), memory_.size(), kBlocks, 8); }, ErrorCode::unsupported);
  EXPECT_EQ(arena_->stats().free, kBlocks - 3);
}

TEST_F(ArenaBlocksTest, IsTakenOverWithItsEntriesAndWithoutLeases) {
  arena_->put("a", arena_->allocate(2));
  arena_->allocate(3);
  move_to_another_namespace(memory_);
  ArenaBlocks::take_over(memory_.data(), memory_.size());
  ArenaBlocks later(memory_.data(), memory_.size(), kBlocks, 8);
  EXPECT_EQ(later.stats().free, kBlocks - 2);
  EXPECT_EQ(later.stats().idle, 2u);
  EXPECT_EQ(later.stats().users, 1u);
}

TEST_F(ArenaBlocksTest, ASharedBlockStaysUntilItsLastLeaseEnds) {
  const Numbers mine = arena_->allocate(1);
  arena_->share(mine);
  arena_->release(mine);
  EXPECT_EQ(arena_->stats().free, kBlocks - 1);
  arena_->release(mine);
  EXPECT_EQ(arena_->stats().free, kBlocks);
}

TEST_F(ArenaBlocksTest, RefusesWrongNumbersAndChangesNothing) {
  const Numbers mine = arena_->allocate(2);
  expect_refused([&] { arena_->release(Numbers{mine[0], mine[0]}); });
  expect_refused([&] { arena_->release(Numbers{kBlocks}); });
  expect_refused([&] { arena_->share(Numbers{mine[0], (mine[0] + 8) % kBlocks}); });
  expect_refused([&] { arena_->put("a", Numbers{mine[0], mine[0]}); });
  expect_refused([&] { arena_->put("a", {}); });
  expect_refused([&] { arena_->put("", mine); });
  expect_refused([&] { arena_->put(std::string(kMaxArenaKey + 1, 'k'), mine); });
  expect_refused([&] { ArenaBlocks(memory_.data(), memory_.size(), kBlocks, 9); });
  EXPECT_TRUE(arena_->put("a", mine));
  expect_refused([&] { arena_->put("b", mine); });
  arena_->release(mine);
  EXPECT_EQ(arena_->stats().idle, 2u);
}

TEST_F(ArenaBlocksTest, FindsUpToTheFirstMissingKeyAndEvictsTheLeastRecentlyUsed) {
  std::map<std::string, Numbers> put;
  for (const char* const key : {"a", "b", "c", "d"}) {
    put[key] = arena_->allocate(4);
    EXPECT_TRUE(arena_->put(key, put[key]));
    EXPECT_FALSE(arena_->put(key, put[key]));
    arena_->release(put[key]);
  }
  const auto found = arena_->find(std::vector<std::string>{"a", "c", "x", "d"});
  EXPECT_EQ(found, (std::vector{put["a"], put["c"]}));
  arena_->release(put["c"]);
  arena_->allocate(5);  // the entries b and d; "a" is leased, and "c" was used last
  EXPECT_FALSE(find("b"));
  EXPECT_FALSE(find("d"));
  EXPECT_EQ(find("c"), put["c"]);
  EXPECT_EQ(arena_->stats().evictions, 2u);
}

TEST_F(ArenaBlocksTest, BlocksOfARemovedKeyAreFreeWhenTheirLeasesEnd) {
  const Numbers leased = arena_->allocate(2), idle = arena_->allocate(3);
  arena_->put("leased", leased);
  arena_->put("idle", idle);
  arena_->release(idle);
  EXPECT_TRUE(arena_->remove("leased"));
  EXPECT_FALSE(arena_->remove("leased"));
  EXPECT_FALSE(find("leased"));
  EXPECT_EQ(arena_->stats().free, kBlocks - 5);
  EXPECT_TRUE(arena_->put("again", leased));
  EXPECT_EQ(arena_->clear(), 2u);
  EXPECT_EQ(arena_->clear(), 0u);
  EXPECT_EQ(arena_->stats().free, kBlocks - 2);
  arena_->release(leased);
  EXPECT_EQ(arena_->stats().free, kBlocks);
}

TEST_F(ArenaBlocksTest, AForkedChildHasNoLeases) {
  const Numbers mine = arena_->allocate(kBlocks);
  Child child([&] {
    expect_refused([&] { arena_->release(mine); });
    arena_->share(mine);
    arena_.reset();
  });
  EXPECT_EQ(child.join(), 0);
  arena_->release(mine);
  EXPECT_EQ(arena_->stats().free, kBlocks);
}

std::atomic<bool>* has_the_mutex = nullptr;

TEST_F(ArenaBlocksTest, AUserThatIsStoppedWithTheMutexHoldsOthersUpForTheirPatienceAlone) {
  ArenaBlocks impatient(memory_.data(), memory_.size(), kBlocks, 8, std::chrono::milliseconds(1));
  const Shared<std::atomic<bool>> flag;
  has_the_mutex = &*flag;
  Child child([&] {
    point_hook.store([](const char* name) noexcept {
      if (std::string_view(name) == "arena.allocate.taken" && !has_the_mutex->exchange(true)) ::pause();
    });
    arena_->allocate(1);
  });
  ASSERT_TRUE(onecopy::testing::eventually([&] { return flag->load(); }));
  expect_refused([&] { impatient.allocate(1); }, ErrorCode::timeout);
  child.kill();
  EXPECT_EQ(impatient.allocate(kBlocks).size(), kBlocks);
}

/// A user works until it passes the point for the `nth` time, and dies there. Others go on, and what it had put is whole.
class AUserDies : public ArenaBlocksTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(AUserDies, AndAllItsBlocksAreFreeOrWhole) {
  for (int nth = 1; nth <= 6; ++nth) {
    Child child([&] {
      onecopy::testing::die_at(GetParam(), nth);
      for (int times = 0; times < 100; ++times) {
        const Numbers mine = arena_->allocate(kBlocks / 4), two = arena_->allocate(2);
        arena_->share(mine);
        arena_->put(fmt::format("{}", mine[0]), mine);
        arena_->put(fmt::format("x{}", mine[0]), two);
        for (const Numbers& found : arena_->find(std::vector{fmt::format("{}", mine[0])}))
          arena_->release(found);
        arena_->remove(fmt::format("x{}", mine[0]));
        arena_->release(two);
        arena_->release(mine);
        arena_->release(mine);
        Child([&] { arena_->allocate(1); }).join();
        arena_->stats();
        arena_->release(arena_->allocate(kBlocks));
      }
    });
    const int end = child.join();
    ASSERT_TRUE(end == -SIGKILL || (nth > 1 && end == 0)) << nth << " " << end;
    const ArenaStats stats = arena_->stats();
    ASSERT_EQ(stats.users, 1u) << nth;
    ASSERT_EQ(stats.free + stats.idle, kBlocks) << nth;
    const Numbers all = arena_->allocate(kBlocks);
    ASSERT_EQ(std::set(all.begin(), all.end()).size(), kBlocks);
    arena_->release(all);
  }
}

INSTANTIATE_TEST_SUITE_P(Points, AUserDies,
                         ::testing::Values("arena.begun", "arena.ends", "arena.attaches",
                                           "arena.allocate.taken", "arena.release.counted",
                                           "arena.put.written", "arena.put.done", "arena.find.leased",
                                           "arena.remove.gone", "arena.dead.counted"));

/// A random program of one process beside a model of sets; another process does the same at the same time.
void run_program(ArenaBlocks& arena, unsigned seed) {
  std::mt19937 random(seed);
  std::multiset<std::uint32_t> held;
  for (int step = 0; step < 1000; ++step) {
    Numbers some;
    for (const std::uint32_t block : held)
      if (random() % 3 == 0 && (some.empty() || some.back() != block)) some.push_back(block);
    const std::string key(1, static_cast<char>('a' + random() % 8));
    switch (random() % 6) {
      case 0: try { some = arena.allocate(random() % 4);
        } catch (const Error& error) {
          ASSERT_EQ(error.code(), ErrorCode::out_of_memory);
          break;
        }
        for (const std::uint32_t block : some) {
          ASSERT_FALSE(held.contains(block));
          held.insert(block);
        }
        break;
      case 1:
        if (held.size() < 64) {
          arena.share(some);
          held.insert(some.begin(), some.end());
        }
        break;
      case 2:
        if (!some.empty()) try {
            arena.put(key, some);
          } catch (const Error& error) {
            ASSERT_EQ(error.code(), ErrorCode::invalid_argument);
          }
        break;
      case 3:
        for (const Numbers& found : arena.find(std::span(&key, 1))) held.insert(found.begin(), found.end());
        break;
      case 4: random() % 8 == 0 ? arena.clear() : arena.remove(key); break;
      default:
        arena.release(some);
        for (const std::uint32_t block : some) held.erase(held.find(block));
    }
  }
  arena.release(Numbers(held.begin(), held.end()));
}

TEST_F(ArenaBlocksTest, TwoProcessesRaceAndEachSeesItsModel) {
  for (unsigned seed = 1; seed < 6; ++seed) {
    Child other([&] { run_program(*arena_, seed + 100); });
    run_program(*arena_, seed);
    EXPECT_EQ(other.join(), 0) << seed;
    const ArenaStats stats = arena_->stats();
    EXPECT_EQ(stats.free + stats.idle, kBlocks) << seed;
  }
}

TEST_F(ArenaBlocksTest, AProcessKilledAtAnyTimeLeavesAWholeArena) {
  std::mt19937 random(::testing::UnitTest::GetInstance()->random_seed());
  for (int round = 0; round < 50; ++round) {
    Child child([&] {
      for (unsigned seed = 0;; ++seed) run_program(*arena_, seed);
    });
    run_program(*arena_, static_cast<unsigned>(random()));
    child.kill();
    const ArenaStats stats = arena_->stats();
    ASSERT_EQ(stats.free + stats.idle, kBlocks);
  }
}

}  // namespace
}  // namespace onecopy::store
