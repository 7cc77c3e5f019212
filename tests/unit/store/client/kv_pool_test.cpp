// SPDX-License-Identifier: Apache-2.0
// Leases, keys and eviction of a KV pool; users that die at each named point; random programs beside a model.
#include "store/client/kv_pool_blocks.h"

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

class KvPoolBlocksTest : public ::testing::Test {
 protected:
  KvPoolBlocksTest()
      : memory_(Mapping::of(create_memfd("kv_pool", KvPoolBlocks::bytes_for(kBlocks)),
                            KvPoolBlocks::bytes_for(kBlocks), Access::read_write)) {
    KvPoolBlocks::init(memory_.data(), kBlocks, 8);
    kv_pool_.emplace(memory_.data(), memory_.size(), kBlocks, 8);
  }
  std::optional<Numbers> find(const std::string& key) {
    auto found = kv_pool_->find(std::span(&key, 1));
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
  std::optional<KvPoolBlocks> kv_pool_;
};

TEST_F(KvPoolBlocksTest, GivesEachBlockOnce) {
  const Numbers all = kv_pool_->allocate(kBlocks);
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), kBlocks);
  expect_refused([&] { kv_pool_->allocate(1); }, ErrorCode::out_of_memory);
  kv_pool_->release(all);
  EXPECT_EQ(kv_pool_->stats().free, kBlocks);
}

/// Makes the KV pool one of another PID namespace.
void move_to_another_namespace(const Mapping& memory) {
  ++reinterpret_cast<KvPoolHeader*>(memory.data())->pid_namespace;
}

TEST_F(KvPoolBlocksTest, IsRefusedInAnotherNamespaceWithNothingChanged) {
  kv_pool_->allocate(3);
  move_to_another_namespace(memory_);
  expect_refused([&] { KvPoolBlocks(memory_.data(), memory_.size(), kBlocks, 8); }, ErrorCode::unsupported);
  EXPECT_EQ(kv_pool_->stats().free, kBlocks - 3);
}

TEST_F(KvPoolBlocksTest, IsTakenOverWithItsEntriesAndWithoutLeases) {
  kv_pool_->put("a", kv_pool_->allocate(2));
  kv_pool_->allocate(3);
  move_to_another_namespace(memory_);
  KvPoolBlocks::take_over(memory_.data(), memory_.size());
  KvPoolBlocks later(memory_.data(), memory_.size(), kBlocks, 8);
  EXPECT_EQ(later.stats().free, kBlocks - 2);
  EXPECT_EQ(later.stats().idle, 2u);
  EXPECT_EQ(later.stats().users, 1u);
}

TEST_F(KvPoolBlocksTest, ASharedBlockStaysUntilItsLastLeaseEnds) {
  const Numbers mine = kv_pool_->allocate(1);
  kv_pool_->share(mine);
  kv_pool_->release(mine);
  EXPECT_EQ(kv_pool_->stats().free, kBlocks - 1);
  kv_pool_->release(mine);
  EXPECT_EQ(kv_pool_->stats().free, kBlocks);
}

TEST_F(KvPoolBlocksTest, RefusesWrongNumbersAndChangesNothing) {
  const Numbers mine = kv_pool_->allocate(2);
  expect_refused([&] { kv_pool_->release(Numbers{mine[0], mine[0]}); });
  expect_refused([&] { kv_pool_->release(Numbers{kBlocks}); });
  expect_refused([&] { kv_pool_->share(Numbers{mine[0], (mine[0] + 8) % kBlocks}); });
  expect_refused([&] { kv_pool_->put("a", Numbers{mine[0], mine[0]}); });
  expect_refused([&] { kv_pool_->put("a", {}); });
  expect_refused([&] { kv_pool_->put("", mine); });
  expect_refused([&] { kv_pool_->put(std::string(kMaxKvPoolKey + 1, 'k'), mine); });
  expect_refused([&] { KvPoolBlocks(memory_.data(), memory_.size(), kBlocks, 9); });
  EXPECT_TRUE(kv_pool_->put("a", mine));
  expect_refused([&] { kv_pool_->put("b", mine); });
  kv_pool_->release(mine);
  EXPECT_EQ(kv_pool_->stats().idle, 2u);
}

TEST_F(KvPoolBlocksTest, FindsUpToTheFirstMissingKeyAndEvictsTheLeastRecentlyUsed) {
  std::map<std::string, Numbers> put;
  for (const char* const key : {"a", "b", "c", "d"}) {
    put[key] = kv_pool_->allocate(4);
    EXPECT_TRUE(kv_pool_->put(key, put[key]));
    EXPECT_FALSE(kv_pool_->put(key, put[key]));
    kv_pool_->release(put[key]);
  }
  const auto found = kv_pool_->find(std::vector<std::string>{"a", "c", "x", "d"});
  EXPECT_EQ(found, (std::vector{put["a"], put["c"]}));
  kv_pool_->release(put["c"]);
  kv_pool_->allocate(5);  // the entries b and d; "a" is leased, and "c" was used last
  EXPECT_FALSE(find("b"));
  EXPECT_FALSE(find("d"));
  EXPECT_EQ(find("c"), put["c"]);
  EXPECT_EQ(kv_pool_->stats().evictions, 2u);
}

TEST_F(KvPoolBlocksTest, BlocksOfARemovedKeyAreFreeWhenTheirLeasesEnd) {
  const Numbers leased = kv_pool_->allocate(2), idle = kv_pool_->allocate(3);
  kv_pool_->put("leased", leased);
  kv_pool_->put("idle", idle);
  kv_pool_->release(idle);
  EXPECT_TRUE(kv_pool_->remove("leased"));
  EXPECT_FALSE(kv_pool_->remove("leased"));
  EXPECT_FALSE(find("leased"));
  EXPECT_EQ(kv_pool_->stats().free, kBlocks - 5);
  EXPECT_TRUE(kv_pool_->put("again", leased));
  EXPECT_EQ(kv_pool_->clear(), 2u);
  EXPECT_EQ(kv_pool_->clear(), 0u);
  EXPECT_EQ(kv_pool_->stats().free, kBlocks - 2);
  kv_pool_->release(leased);
  EXPECT_EQ(kv_pool_->stats().free, kBlocks);
}

TEST_F(KvPoolBlocksTest, AForkedChildHasNoLeases) {
  const Numbers mine = kv_pool_->allocate(kBlocks);
  Child child([&] {
    expect_refused([&] { kv_pool_->release(mine); });
    kv_pool_->share(mine);
    kv_pool_.reset();
  });
  EXPECT_EQ(child.join(), 0);
  kv_pool_->release(mine);
  EXPECT_EQ(kv_pool_->stats().free, kBlocks);
}

std::atomic<bool>* has_the_mutex = nullptr;

TEST_F(KvPoolBlocksTest, AUserThatIsStoppedWithTheMutexHoldsOthersUpForTheirPatienceAlone) {
  KvPoolBlocks impatient(memory_.data(), memory_.size(), kBlocks, 8, std::chrono::milliseconds(1));
  const Shared<std::atomic<bool>> flag;
  has_the_mutex = &*flag;
  Child child([&] {
    point_hook.store([](const char* name) noexcept {
      if (std::string_view(name) == "kv_pool.allocate.taken" && !has_the_mutex->exchange(true)) ::pause();
    });
    kv_pool_->allocate(1);
  });
  ASSERT_TRUE(onecopy::testing::eventually([&] { return flag->load(); }));
  expect_refused([&] { impatient.allocate(1); }, ErrorCode::timeout);
  child.kill();
  EXPECT_EQ(impatient.allocate(kBlocks).size(), kBlocks);
}

/// A user works until it passes the point for the `nth` time, and dies there. Others go on, and what it had put is whole.
class AUserDies : public KvPoolBlocksTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(AUserDies, AndAllItsBlocksAreFreeOrWhole) {
  for (int nth = 1; nth <= 6; ++nth) {
    Child child([&] {
      onecopy::testing::die_at(GetParam(), nth);
      for (int times = 0; times < 100; ++times) {
        const Numbers mine = kv_pool_->allocate(kBlocks / 4), two = kv_pool_->allocate(2);
        kv_pool_->share(mine);
        kv_pool_->put(fmt::format("{}", mine[0]), mine);
        kv_pool_->put(fmt::format("x{}", mine[0]), two);
        for (const Numbers& found : kv_pool_->find(std::vector{fmt::format("{}", mine[0])}))
          kv_pool_->release(found);
        kv_pool_->remove(fmt::format("x{}", mine[0]));
        kv_pool_->release(two);
        kv_pool_->release(mine);
        kv_pool_->release(mine);
        Child([&] { kv_pool_->allocate(1); }).join();
        kv_pool_->stats();
        kv_pool_->release(kv_pool_->allocate(kBlocks));
      }
    });
    const int end = child.join();
    ASSERT_TRUE(end == -SIGKILL || (nth > 1 && end == 0)) << nth << " " << end;
    const KvPoolStats stats = kv_pool_->stats();
    ASSERT_EQ(stats.users, 1u) << nth;
    ASSERT_EQ(stats.free + stats.idle, kBlocks) << nth;
    const Numbers all = kv_pool_->allocate(kBlocks);
    ASSERT_EQ(std::set(all.begin(), all.end()).size(), kBlocks);
    kv_pool_->release(all);
  }
}

INSTANTIATE_TEST_SUITE_P(Points, AUserDies,
                         ::testing::Values("kv_pool.begun", "kv_pool.ends", "kv_pool.attaches",
                                           "kv_pool.allocate.taken", "kv_pool.release.counted",
                                           "kv_pool.put.written", "kv_pool.put.done", "kv_pool.find.leased",
                                           "kv_pool.remove.gone", "kv_pool.dead.counted"));

/// A random program of one process beside a model of sets; another process does the same at the same time.
void run_program(KvPoolBlocks& kv_pool, unsigned seed) {
  std::mt19937 random(seed);
  std::multiset<std::uint32_t> held;
  for (int step = 0; step < 1000; ++step) {
    Numbers some;
    for (const std::uint32_t block : held)
      if (random() % 3 == 0 && (some.empty() || some.back() != block)) some.push_back(block);
    const std::string key(1, static_cast<char>('a' + random() % 8));
    switch (random() % 6) {
      case 0: try { some = kv_pool.allocate(random() % 4);
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
          kv_pool.share(some);
          held.insert(some.begin(), some.end());
        }
        break;
      case 2:
        if (!some.empty()) try {
            kv_pool.put(key, some);
          } catch (const Error& error) {
            ASSERT_EQ(error.code(), ErrorCode::invalid_argument);
          }
        break;
      case 3:
        for (const Numbers& found : kv_pool.find(std::span(&key, 1)))
          held.insert(found.begin(), found.end());
        break;
      case 4: random() % 8 == 0 ? kv_pool.clear() : kv_pool.remove(key); break;
      default:
        kv_pool.release(some);
        for (const std::uint32_t block : some) held.erase(held.find(block));
    }
  }
  kv_pool.release(Numbers(held.begin(), held.end()));
}

TEST_F(KvPoolBlocksTest, TwoProcessesRaceAndEachSeesItsModel) {
  for (unsigned seed = 1; seed < 6; ++seed) {
    Child other([&] { run_program(*kv_pool_, seed + 100); });
    run_program(*kv_pool_, seed);
    EXPECT_EQ(other.join(), 0) << seed;
    const KvPoolStats stats = kv_pool_->stats();
    EXPECT_EQ(stats.free + stats.idle, kBlocks) << seed;
  }
}

TEST_F(KvPoolBlocksTest, AProcessKilledAtAnyTimeLeavesAWholeKvPool) {
  std::mt19937 random(::testing::UnitTest::GetInstance()->random_seed());
  for (int round = 0; round < 50; ++round) {
    Child child([&] {
      for (unsigned seed = 0;; ++seed) run_program(*kv_pool_, seed);
    });
    run_program(*kv_pool_, static_cast<unsigned>(random()));
    child.kill();
    const KvPoolStats stats = kv_pool_->stats();
    ASSERT_EQ(stats.free + stats.idle, kBlocks);
  }
}

}  // namespace
}  // namespace onecopy::store
