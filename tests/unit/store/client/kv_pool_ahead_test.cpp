// SPDX-License-Identifier: Apache-2.0
// Extents of a KV pool that are populated piece by piece: by the calls that need blocks, and ahead by a thread.
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "kv_pool_fixture.h"
#include "support/die_at.h"

namespace onecopy::store {
namespace {

using onecopy::testing::Child;
using onecopy::testing::eventually;
using onecopy::testing::Shared;

constexpr std::uint64_t kPiece = 1 << 20;  // a block is a piece

/// A KV pool of two extents of eight blocks, each of which is a piece. The memory is a flag for each block.
class KvPoolAheadTest : public ::testing::Test {
 protected:
  struct Memory {
    std::array<std::atomic<bool>, kBlocks> is_there;
    std::atomic<std::uint32_t> begun, pieces, by_others;
    std::atomic<std::uint32_t> is_limited_to{kBlocks}, waits_at{kBlocks};
  };

  KvPoolBlocks open(const std::string& space = "", std::uint64_t max_bytes = 0,
                    std::chrono::milliseconds patience = std::chrono::seconds(10)) {
    const auto populate = [this, caller = std::this_thread::get_id()](std::uint64_t offset,
                                                                      std::uint64_t bytes) {
      const auto block = static_cast<std::uint32_t>(offset / kPiece);
      EXPECT_EQ(bytes, kPiece);
      ++memory_->begun;
      EXPECT_TRUE(eventually([&] { return block != memory_->waits_at; }));
      if (block >= memory_->is_limited_to) return false;
      memory_->by_others += std::this_thread::get_id() != caller;
      memory_->is_there[block] = true;
      ++memory_->pieces;
      return true;
    };
    return {control_, KvPoolOptions{.block_bytes = kPiece, .space = space, .max_bytes = max_bytes},
            populate, patience};
  }
  Numbers allocate(KvPoolBlocks& pool, std::uint32_t count) {
    const Numbers numbers = pool.allocate(count);
    for (const std::uint32_t number : numbers) EXPECT_TRUE(memory_->is_there[number]) << number;
    return numbers;
  }
  /// Gives each block a key, and releases the blocks.
  static void put(KvPoolBlocks& pool, const Numbers& numbers) {
    for (const std::uint32_t number : numbers)
      EXPECT_TRUE(pool.put(fmt::format("{} {}", ::getpid(), ++keys_), number));
    pool.release(numbers);
  }
  bool has_pieces(std::uint32_t count) {
    return eventually([&] { return memory_->pieces == count; });
  }

  inline static std::atomic<int> keys_{0};
  const Fd control_ = KvPoolBlocks::make({2, kRecords, kRecords* kPiece});
  const Shared<Memory> memory_;
};

TEST_F(KvPoolAheadTest, ACallPopulatesOnePieceAndAThreadTheRestOfTheExtent) {
  KvPoolBlocks pool = open();
  allocate(pool, 1);
  EXPECT_TRUE(has_pieces(kRecords));
  EXPECT_EQ(memory_->by_others, kRecords - 1);
  allocate(pool, kRecords / 2);  // less than half of an extent is free
  EXPECT_TRUE(has_pieces(kBlocks));
  allocate(pool, kRecords);
  EXPECT_EQ(pool.stats().growth_waits, 1u);
  EXPECT_EQ(memory_->by_others, kBlocks - 1);
}

TEST_F(KvPoolAheadTest, TheThreadTakesNoMoreThanTheNamespaceMayHaveAndEvictsNothing) {
  {
    KvPoolBlocks pool = open("", kRecords * kPiece);
    put(pool, allocate(pool, kRecords));
    EXPECT_EQ(pool.stats().idle, kRecords);
    allocate(pool, 2);  // evicts two
    EXPECT_EQ(pool.stats().evictions, 2u);
  }
  EXPECT_EQ(memory_->pieces, kRecords);
}

TEST_F(KvPoolAheadTest, AnotherNamespaceGetsMemoryAheadBeforeKeysAreRemoved) {
  KvPoolBlocks first = open("first"), second = open("second");
  put(first, allocate(first, kRecords - 1));
  ASSERT_TRUE(has_pieces(kBlocks));
  ASSERT_TRUE(eventually([&] { return first.stats().free == kRecords + 1; }));
  allocate(second, kRecords);
  EXPECT_EQ(first.stats().idle, kRecords - 1);
  EXPECT_EQ(first.stats().blocks, kRecords);
}

TEST_F(KvPoolAheadTest, AnotherNamespaceWaitsForAnExtentOfWhichAPieceIsBeingPopulated) {
  memory_->waits_at = kRecords + 2;
  KvPoolBlocks first = open("first"), second = open("second");
  put(first, allocate(first, kRecords - 1));
  ASSERT_TRUE(eventually([&] { return memory_->begun == kRecords + 3; }));
  const std::jthread waits([&] { allocate(second, kRecords); });
  ASSERT_TRUE(eventually([&] { return first.stats().free == 1; })) << "the extent drains";
  EXPECT_EQ(second.stats().blocks, 0u);
  memory_->waits_at = kBlocks;
  ASSERT_TRUE(eventually([&] { return second.stats().leased == kRecords; }));
  EXPECT_EQ(first.stats().idle, kRecords - 1);
  EXPECT_EQ(second.stats().growth_waits, 1u);
}

TEST_F(KvPoolAheadTest, AForkHasAThreadOfItsOwn) {
  KvPoolBlocks pool = open();
  allocate(pool, 1);
  ASSERT_TRUE(has_pieces(kRecords));
  const auto use = [&] {
    allocate(pool, kRecords / 2);
    EXPECT_TRUE(has_pieces(kBlocks));
    EXPECT_EQ(memory_->by_others, kBlocks - 1);
    std::destroy_at(&pool);  // ends the thread of this process alone
    ::_exit(::testing::Test::HasFailure());
  };
  EXPECT_EQ(Child(use).join(), 0);
  EXPECT_EQ(pool.stats().leased, 1u);
  EXPECT_EQ(allocate(pool, kBlocks - 1).size(), kBlocks - 1);
}

TEST_F(KvPoolAheadTest, AForkOfAProcessWhoseThreadPopulatesUsesWhatIsThereAndWaitsForTheRest) {
  memory_->waits_at = 2;
  KvPoolBlocks pool = open();
  allocate(pool, 1);
  ASSERT_TRUE(eventually([&] { return memory_->begun == 3; }));
  const Shared<std::atomic<bool>> has_one;
  Child fork([&] {
    allocate(pool, 1);
    *has_one = true;
    allocate(pool, kRecords - 1);
  });
  EXPECT_TRUE(eventually([&] { return has_one->load(); }));
  memory_->waits_at = kBlocks;
  EXPECT_EQ(fork.join(), 0);
}

TEST_F(KvPoolAheadTest, ACallWaitsHoweverLongTheThreadOfItsProcessTakes) {
  memory_->waits_at = 2;
  KvPoolBlocks pool = open("", 0, std::chrono::milliseconds(1));
  allocate(pool, 1);
  ASSERT_TRUE(eventually([&] { return memory_->begun == 3; }));
  const std::jthread goes_on([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    memory_->waits_at = kBlocks;
  });
  EXPECT_EQ(allocate(pool, kBlocks - 1).size(), kBlocks - 1);
}

TEST_F(KvPoolAheadTest, WhatTheSystemHasNoMemoryForIsPopulatedLater) {
  memory_->is_limited_to = 2;
  KvPoolBlocks pool = open();
  const Numbers first = allocate(pool, 2);
  for (int times = 0; times < 3; ++times) {
    try {
      pool.allocate(1);
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    }
  }
  pool.release(first);
  EXPECT_EQ(pool.stats().free, kRecords);
  memory_->is_limited_to = kBlocks;
  EXPECT_EQ(allocate(pool, kBlocks).size(), kBlocks);
}

TEST_F(KvPoolAheadTest, TheEndOfTheObjectWaitsForThePieceThatTheThreadPopulates) {
  memory_->waits_at = 2;
  std::unique_ptr<KvPoolBlocks> pool(new KvPoolBlocks(open()));
  allocate(*pool, 1);
  ASSERT_TRUE(eventually([&] { return memory_->begun == 3; }));
  std::jthread ends([&] { pool.reset(); });
  memory_->waits_at = kBlocks;
  ends.join();
  EXPECT_EQ(memory_->begun, memory_->pieces);
  KvPoolBlocks other = open();
  EXPECT_EQ(allocate(other, kBlocks).size(), kBlocks);
}

class AGrowerDies : public KvPoolAheadTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(AGrowerDies, AndOthersGetAllBlocksWithMemory) {
  KvPoolBlocks mine = open();
  for (int nth = 1; nth <= 20; ++nth) {
    Child child([&] {
      onecopy::testing::die_at(GetParam(), nth);
      KvPoolBlocks first = open("first"), second = open("second");
      for (int times = 0; times < 10; ++times)
        for (KvPoolBlocks* const pool : {&mine, &first, &second}) put(*pool, allocate(*pool, 3));
    });
    const int end = child.join();
    ASSERT_TRUE(end == -SIGKILL || (nth > 1 && end == 0)) << nth << " " << end;
    const KvPoolStats stats = mine.stats();
    ASSERT_EQ(stats.users, 1u) << nth;
    ASSERT_EQ(stats.leased, 0u) << nth;
    ASSERT_EQ(stats.free + stats.idle, stats.blocks) << nth;
    const Numbers all = allocate(mine, kBlocks);
    ASSERT_EQ(std::set(all.begin(), all.end()).size(), kBlocks) << nth;
    mine.release(all);
  }
}

INSTANTIATE_TEST_SUITE_P(Points, AGrowerDies,
                         ::testing::Values("kv_pool.begun", "kv_pool.ends", "kv_pool.claim.grows",
                                           "kv_pool.grown", "kv_pool.extent.opens",
                                           "kv_pool.extent.vacated", "kv_pool.drain.block",
                                           "kv_pool.remove.unlinked"));

}  // namespace
}  // namespace onecopy::store
