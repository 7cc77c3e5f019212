// SPDX-License-Identifier: Apache-2.0
// Leases, keys, groups, namespaces and eviction of a KV pool, and users that are stopped, forked and in other PID namespaces.
#include "store/client/kv_pool_blocks.h"

#include <gtest/gtest.h>

#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <set>
#include <thread>
#include <vector>

#include "core/point.h"
#include "kv_pool_fixture.h"

namespace onecopy::store {
namespace {

using onecopy::testing::Child;
using onecopy::testing::eventually;
using onecopy::testing::Shared;

TEST_F(KvPoolTest, GivesEachBlockOnce) {
  const Numbers all = pool_->allocate(kBlocks);
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), kBlocks);
  expect_refused([&] { pool_->allocate(1); }, ErrorCode::out_of_memory);
  pool_->release(all);
  EXPECT_EQ(pool_->stats().free, kBlocks);
}

TEST_F(KvPoolTest, MakesNoMemoryBeforeABlockIsNeeded) {
  EXPECT_EQ(populated_, 0u);
  EXPECT_EQ(pool_->stats().free_bytes, kBudget);
  pool_->allocate(1);
  EXPECT_EQ(populated_, 1u);
  EXPECT_EQ(pool_->stats().free_bytes, kBudget / 2);
}

TEST_F(KvPoolTest, RefusesWrongNumbersAndChangesNothing) {
  const Numbers mine = pool_->allocate(2);
  expect_refused([&] { pool_->release(Numbers{mine[0], mine[0]}); });
  expect_refused([&] { pool_->release(Numbers{kBlocks}); });
  expect_refused([&] { pool_->put("a", mine[0] == 0 ? kBlocks - 1 : mine[0] - 1); });
  expect_refused([&] { pool_->complete(mine, 1); });
  expect_refused([&] { pool_->tickets(Numbers{kBlocks + 7}); });
  EXPECT_TRUE(pool_->put("a", mine[0]));
  expect_refused([&] { pool_->put("b", mine[0]); });
  pool_->release(mine);
  EXPECT_EQ(pool_->stats().idle, 1u);
}

TEST_F(KvPoolTest, FindsUpToTheFirstMissingKeyOrAll) {
  const Numbers put = put_some({"a", "b", "c"});
  const Keys keys{"a", "x", "c"};
  EXPECT_EQ(pool_->find(keys, false), (Found{put[0]}));
  EXPECT_EQ(pool_->find(keys, true), (Found{put[0], {}, put[2]}));
  EXPECT_EQ(pool_->stats().hits, 3u);
  EXPECT_EQ(pool_->stats().misses, 2u);
}

TEST_F(KvPoolTest, EvictsWhatNobodyFoundBeforeWhatWasUsedLeastRecently) {
  put_some({"a", "b", "c", "d"});
  for (const char* const key : {"c", "a"}) pool_->release(Numbers{*find(key)});
  pool_->allocate(kBlocks - 1);  // all but three: b and d go, then c
  EXPECT_EQ(
      pool_->contains(Keys{"a", "b", "c", "d"}),
      (std::vector{KvPresence::whole, KvPresence::missing, KvPresence::missing, KvPresence::missing}));
}

TEST_F(KvPoolTest, APinnedKeyIsNotEvicted) {
  put_some({"a", "b"});
  EXPECT_EQ(pool_->pin(Keys{"a", "x"}, 1000), 1u);
  pool_->release(pool_->allocate(kBlocks - 1));
  EXPECT_TRUE(find("a"));
  EXPECT_FALSE(find("b"));
  pool_->release(Numbers{*find("a"), *find("a"), *find("a")});
  expect_refused([&] { pool_->allocate(kBlocks); }, ErrorCode::out_of_memory);
  EXPECT_EQ(pool_->stats().free, kBlocks - 1);
  pool_->pin(Keys{"a"}, 0);
}

TEST_F(KvPoolTest, AtMostAQuarterIsPinned) {
  pool_->release(pool_->allocate(kBlocks));
  const Keys keys{"a", "b", "c", "d", "e"};
  put_some(keys);
  expect_refused([&] { pool_->pin(keys, 10); }, ErrorCode::out_of_memory);
  EXPECT_EQ(pool_->pin(std::span(keys).first(4), 10), 4u);
}

TEST_F(KvPoolTest, ABlockOfSeveralPartsIsVisibleOnlyWhenAllAreComplete) {
  KvPoolBlocks ranks(control_, {.block_bytes = 8, .space = "ranks", .parts = 3});
  KvPoolBlocks other(control_, {.block_bytes = 8, .space = "ranks", .parts = 3});
  const Keys key{"a"};
  const Numbers mine{*ranks.write(key, 7)[0]};
  EXPECT_EQ(other.write(key, 8)[0], std::nullopt);
  const Numbers theirs{*other.write(key, 7)[0]};
  EXPECT_EQ(mine, theirs);
  ranks.complete(mine, 0);
  ranks.complete(mine, 0);
  other.complete(theirs, 2);
  EXPECT_EQ(other.find(key, false).size(), 0u);
  EXPECT_EQ(ranks.contains(key)[0], KvPresence::writing);
  ranks.complete(mine, 1);
  EXPECT_EQ(other.find(key, false), Found{mine[0]});
  EXPECT_EQ(ranks.contains(key)[0], KvPresence::whole);
}

TEST_F(KvPoolTest, AFailedPartTakesTheKeyAndNoLease) {
  const Numbers mine{*pool_->write(Keys{"a"}, 7)[0]};
  pool_->fail(mine);
  pool_->complete(mine, 0);
  EXPECT_FALSE(find("a"));
  EXPECT_EQ(pool_->stats().leased, 1u);
  pool_->release(mine);
  EXPECT_EQ(pool_->stats().leased, 0u);
}

TEST_F(KvPoolTest, ADeadPartTakesTheKeyWhileOthersKeepTheirLeases) {
  const Numbers mine{*pool_->write(Keys{"a"}, 7)[0]};
  Child part([&] {
    pool_->write(Keys{"a"}, 7);
    std::raise(SIGKILL);
  });
  EXPECT_EQ(part.join(), -SIGKILL);
  EXPECT_EQ(pool_->stats().users, 1u);
  pool_->complete(mine, 0);
  EXPECT_FALSE(find("a"));
  EXPECT_EQ(pool_->stats().leased, 1u);
}

TEST_F(KvPoolTest, WhoeverJoinsKeepsABlockWhenTheOneThatAllocatedItDies) {
  const Shared<std::atomic<std::uint64_t>> ticket;
  Child scheduler([&] {
    *ticket = pool_->tickets(Numbers{*pool_->write(Keys{"a"}, 7)[0]})[0];
    ::pause();
  });
  ASSERT_TRUE(eventually([&] { return *ticket != 0; }));
  const std::uint64_t one = *ticket;
  const Numbers joined = pool_->join(std::span(&one, 1));
  scheduler.kill();
  const Numbers rest = pool_->allocate(kBlocks - 1);
  EXPECT_EQ(std::count(rest.begin(), rest.end(), joined[0]), 0);
  pool_->release(joined);
  pool_->allocate(1);
  expect_refused([&] { pool_->join(std::span(&one, 1)); }, ErrorCode::stale_handle);
}

TEST_F(KvPoolTest, BlocksOfARemovedKeyAreFreeWhenTheirLeasesEnd) {
  const Numbers leased = pool_->allocate(1);
  pool_->put("leased", leased[0]);
  put_some({"idle"});
  EXPECT_TRUE(pool_->remove("leased"));
  EXPECT_FALSE(pool_->remove("leased"));
  EXPECT_EQ(pool_->stats().leased, 1u);
  EXPECT_TRUE(pool_->put("again", leased[0]));
  EXPECT_EQ(pool_->clear(), 2u);
  EXPECT_EQ(pool_->clear(), 0u);
  pool_->release(leased);
  EXPECT_EQ(pool_->stats().free, kBlocks / 2);
}

TEST_F(KvPoolTest, EventsTellOfKeysThatCameAndWent) {
  const std::string key(32, 'k');
  put_some({key});
  const KvPoolEvents first = pool_->events(0);
  pool_->clear();
  const KvPoolEvents second = pool_->events(first.next);
  ASSERT_EQ(first.events.size() + second.events.size(), 2u);
  EXPECT_TRUE(first.events[0].stored);
  EXPECT_FALSE(second.events[0].stored);
  EXPECT_EQ(second.events[0].key, key);
  for (int i = 0; i < 9000; ++i) {
    put_some({"again"});
    pool_->clear();
  }
  EXPECT_TRUE(pool_->events(first.next).are_missing);
}

TEST_F(KvPoolTest, NamespacesShareTheBudgetAndNoKey) {
  KvPoolBlocks other(control_, {.block_bytes = 16, .space = "other"});
  put_some({"a"});
  EXPECT_EQ(other.find(Keys{"a"}, false).size(), 0u);
  other.put("a", other.allocate(1)[0]);
  EXPECT_EQ(other.stats().blocks, 4u);
  EXPECT_EQ(pool_->stats().blocks, kBlocks / 2);
  expect_refused([&] { KvPoolBlocks(control_, {.block_bytes = 32, .space = "other"}); });
  expect_refused([&] { KvPoolBlocks(control_, {.block_bytes = 40, .space = "wastes"}); });
  expect_refused([&] { KvPoolBlocks(control_, {.block_bytes = 128, .space = "large"}); });
}

TEST_F(KvPoolTest, ANamespaceGetsTheExtentOfAnotherOneOnceItsLeasesHaveEnded) {
  const Numbers leased = pool_->allocate(kBlocks);
  for (const std::uint32_t block : leased) pool_->put(std::to_string(block), block);
  pool_->release(std::span(leased).first(kBlocks - 1));
  const std::uint32_t kept = leased.back();
  KvPoolBlocks other(control_, {.block_bytes = 16, .space = "other"});
  KvPoolBlocks third(control_, {.block_bytes = 32, .space = "third"});
  const Numbers theirs = other.allocate(4);
  EXPECT_EQ(
      std::count_if(theirs.begin(), theirs.end(), [&](auto n) { return n / kRecords == kept / kRecords; }),
      0);
  expect_refused([&] { third.allocate(1); }, ErrorCode::out_of_memory);
  EXPECT_TRUE(find(std::to_string(kept))) << "a namespace keeps an extent while it has a lease";
  pool_->release(Numbers{kept, kept});
  EXPECT_EQ(third.allocate(2).size(), 2u);
  EXPECT_EQ(pool_->stats().blocks, 0u);
}

TEST_F(KvPoolTest, ABlockWhoseExtentGoesToAnotherNamespaceGetsNoKey) {
  Numbers rest = pool_->allocate(kBlocks);
  const Numbers kept{0, kRecords};  // one of each extent
  std::erase_if(rest, [](std::uint32_t block) { return block % kRecords == 0; });
  pool_->release(rest);
  KvPoolBlocks other(control_, {.block_bytes = 16, .space = "other"});
  expect_refused([&] { other.allocate(1); }, ErrorCode::out_of_memory);
  EXPECT_FALSE(pool_->put("a", kept[0])) << "the extent with the fewest leases, here the first one, drains";
  EXPECT_TRUE(pool_->put("b", kept[1]));
  pool_->release(kept);
  EXPECT_EQ(other.allocate(4).size(), 4u);
  EXPECT_FALSE(find("a"));
  EXPECT_EQ(find("b"), kept[1]);
}

TEST_F(KvPoolTest, TheRowOfANamespaceWithoutMemoryIsUsedAgainAndItsUsersOpenItAgain) {
  pool_->stats();
  for (std::uint32_t i = 0; i < kKvSpaces; ++i)
    KvPoolBlocks(control_, {.block_bytes = 8, .space = std::to_string(i)});
  expect_refused([&] { pool_->allocate(1); }, ErrorCode::stale_handle);
  pool_.emplace(control_, KvPoolOptions{.block_bytes = 8});
  EXPECT_EQ(pool_->allocate(1).size(), 1u);
}

TEST_F(KvPoolTest, MinAndMaxOfANamespaceAreKept) {
  KvPoolBlocks kept(control_, {.block_bytes = 8, .space = "kept", .min_bytes = 1});
  KvPoolBlocks few(control_, {.block_bytes = 8, .space = "few", .max_bytes = kBudget / 2});
  expect_refused([&] { pool_->allocate(kBlocks / 2 + 1); }, ErrorCode::out_of_memory);
  EXPECT_EQ(kept.allocate(kBlocks / 2).size(), kBlocks / 2);
  expect_refused([&] { few.allocate(kBlocks / 2 + 1); }, ErrorCode::out_of_memory);
}

TEST_F(KvPoolTest, OneUserLeasesHalfOfTheBudgetBesideOthers) {
  KvPoolBlocks other(control_, {.block_bytes = 8});
  other.stats();
  pool_->allocate(kBlocks / 2);
  expect_refused([&] { pool_->allocate(1); }, ErrorCode::out_of_memory);
  EXPECT_EQ(other.allocate(kBlocks / 2).size(), kBlocks / 2);
}

TEST_F(KvPoolTest, AForkedChildHasNoLeasesAndIsAUserOfItsOwn) {
  const Numbers mine = pool_->allocate(kBlocks / 2);
  Child child([&] {
    expect_refused([&] { pool_->release(mine); });
    EXPECT_EQ(pool_->allocate(2).size(), 2u);
    EXPECT_EQ(pool_->stats().users, 2u);
    pool_.reset();
  });
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(pool_->stats().users, 1u);
  pool_->release(mine);
  EXPECT_EQ(pool_->stats().free, kBlocks);
}

TEST_F(KvPoolTest, ChildrenThatOutliveTheirParentDoNotKeepItsLeases) {
  const Shared<std::atomic<int>> grandchild;
  Child user([&] {
    pool_->allocate(kBlocks / 2);
    if (const int pid = ::fork(); pid != 0) *grandchild = pid;
    else ::pause();
    std::raise(SIGKILL);
  });
  EXPECT_EQ(user.join(), -SIGKILL);
  EXPECT_EQ(pool_->stats().leased, 0u);
  ::kill(*grandchild, SIGKILL);
}

TEST_F(KvPoolTest, AUserOfAnotherPidNamespaceKeepsItsLeasesUntilItEnds) {
  const Shared<std::atomic<int>> state;
  Child user([&] {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID) != 0) {
      *state = 2;
      return;
    }
    if (::fork() != 0) ::pause();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getpid() != 1 || ::mount("proc", "/proc", "proc", 0, nullptr) != 0) {
      *state = 2;
      return;
    }
    pool_->allocate(3);
    *state = 1;
    ::pause();
  });
  ASSERT_TRUE(eventually([&] { return *state != 0; }));
  if (*state == 2) GTEST_SKIP() << "needs user namespaces with a /proc of their own";
  EXPECT_EQ(pool_->stats().leased, 3u);
  user.kill();
  EXPECT_TRUE(eventually([&] { return pool_->stats().leased == 0; }));
}

std::atomic<bool>* has_the_lock = nullptr;

TEST_F(KvPoolTest, AStoppedHolderOfTheLockMakesOthersMissAndHasItsLeasesStill) {
  KvPoolBlocks impatient(control_, {.block_bytes = 8}, {}, std::chrono::milliseconds(1));
  put_some({"a"});
  const Numbers mine = impatient.allocate(1);
  const Shared<std::atomic<bool>> flag;
  has_the_lock = &*flag;
  Child child([&] {
    point_hook.store([](const char* name) noexcept {
      if (std::string_view(name) == "kv_pool.leased" && !has_the_lock->exchange(true)) ::pause();
    });
    pool_->allocate(1);
  });
  ASSERT_TRUE(eventually([&] { return flag->load(); }));
  EXPECT_EQ(impatient.find(Keys{"a"}, false).size(), 0u);
  EXPECT_EQ(impatient.write(Keys{"b"}, 1)[0], std::nullopt);
  EXPECT_FALSE(impatient.put("b", mine[0]));
  expect_refused([&] { impatient.allocate(1); }, ErrorCode::out_of_memory);
  expect_refused([&] { impatient.remove("a"); }, ErrorCode::timeout);
  impatient.release(mine);
  expect_refused([&] { impatient.release(mine); });
  child.kill();
  EXPECT_TRUE(eventually([&] { return !impatient.find(Keys{"a"}, false).empty(); }));
  EXPECT_EQ(impatient.stats().leased, 1u) << "the dead user's lease and the released one have ended";
  EXPECT_GE(impatient.stats().timeouts, 1u);
}

TEST_F(KvPoolTest, ManyUsersComeAndGo) {
  for (int i = 0; i < 300; ++i) KvPoolBlocks(control_, {.block_bytes = 8}).stats();
  EXPECT_EQ(pool_->stats().users, 1u);
}

TEST_F(KvPoolTest, MoreThan256UsersAreRefused) {
  std::vector<std::unique_ptr<KvPoolBlocks>> users;
  for (std::uint32_t i = 0; i < kKvUsers; ++i) {
    users.push_back(std::make_unique<KvPoolBlocks>(control_, KvPoolOptions{.block_bytes = 8}));
    users.back()->stats();
  }
  expect_refused([&] { pool_->stats(); }, ErrorCode::out_of_memory);
  users.pop_back();
  EXPECT_EQ(pool_->stats().users, kKvUsers);
}

}  // namespace
}  // namespace onecopy::store
