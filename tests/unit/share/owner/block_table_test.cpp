// SPDX-License-Identifier: Apache-2.0
#include "share/owner/block_table.h"

#include <gtest/gtest.h>

#include <vector>

namespace onecopy {
namespace {

using Table = BlockTable<RealPlatform>;

constexpr std::uint32_t kBlocks = 200;

/// A borrower's page for kBlocks blocks.
struct Borrower {
  ClaimPageHeader<RealPlatform> header{};
  std::vector<std::atomic<std::uint32_t>> slots = std::vector<std::atomic<std::uint32_t>>(kBlocks);
  std::vector<std::atomic<std::uint64_t>> middle = std::vector<std::atomic<std::uint64_t>>(16);
  std::vector<std::atomic<std::uint64_t>> leaves =
      std::vector<std::atomic<std::uint64_t>>(kBlocks / 64 + 1);
  ClaimPage<RealPlatform> page{&header, slots.data(), middle.data(), leaves.data()};
};

class BlockTableTest : public ::testing::Test {
 protected:
  std::uint32_t add() {
    const std::uint32_t block = table.take();
    table.publish(block);
    return block;
  }
  std::uint32_t lend() {
    const std::uint32_t block = add();
    table.export_block(block);
    return block;
  }
  bool claim(Borrower& borrower, std::uint32_t block) {
    return try_claim(borrower.page, table.record(block), block, held_generation(table.record(block).word));
  }
  void release(Borrower& borrower, std::uint32_t block) {
    release_claim(borrower.page, table.record(block), block);
  }
  BlockState state(std::uint32_t block) { return state_of(table.record(block).word); }
  std::uint64_t generation(std::uint32_t block) { return generation_of(table.record(block).word); }
  std::vector<std::uint32_t> drain() {
    std::vector<std::uint32_t> home;
    table.drain([&](std::uint32_t block) { home.push_back(block), table.give_back(block); });
    return home;
  }
  std::vector<std::uint32_t> rescan() {
    std::vector<std::uint32_t> home;
    table.rescan([&](std::uint32_t block) { home.push_back(block), table.give_back(block); });
    return home;
  }

  std::vector<Table::Record> records = std::vector<Table::Record>(kBlocks);
  Table table{records.data(), kBlocks};
  Borrower a, b;
};
using Blocks = std::vector<std::uint32_t>;

TEST_F(BlockTableTest, HandsOutEachBlockUntilNoneIsLeft) {
  for (std::uint32_t i = 0; i < kBlocks; ++i) ASSERT_EQ(add(), i);
  EXPECT_EQ(table.take(), kBlocks);
  EXPECT_EQ(table.used(), kBlocks);
  EXPECT_EQ(table.live(), kBlocks);
  ASSERT_TRUE(table.free_block(17));
  table.give_back(17);
  EXPECT_EQ(table.live(), kBlocks - 1);
  EXPECT_EQ(add(), 17u);
}

TEST_F(BlockTableTest, FreesWhatWasNeverExportedWithoutALookAtAnybody) {
  table.attach(a.page);
  const std::uint32_t block = add();
  a.header.all = 1;
  a.slots[block] = 1;
  EXPECT_TRUE(table.free_block(block));
  EXPECT_EQ(state(block), BlockState::free);
  EXPECT_EQ(generation(block), 1u);
}

TEST_F(BlockTableTest, FreesAnExportedBlockAtOnceWhenNobodyHoldsIt) {
  table.attach(a.page);
  const std::uint32_t block = lend();
  EXPECT_TRUE(table.free_block(block));
  EXPECT_EQ(table.limbo_size(), 0u);
  EXPECT_EQ(state(block), BlockState::free);
}

TEST_F(BlockTableTest, ExportsOnceAndNamesTheSameGeneration) {
  const std::uint32_t block = add();
  EXPECT_EQ(table.export_block(block), 0u);
  EXPECT_EQ(state(block), BlockState::exported);
  EXPECT_EQ(table.export_block(block), 0u);
}

TEST_F(BlockTableTest, ABlockSharedOnWhileClosingKeepsItsGeneration) {
  table.attach(a.page);
  const std::uint32_t block = lend();
  ASSERT_TRUE(claim(a, block));
  ASSERT_FALSE(table.free_block(block));
  EXPECT_EQ(generation(block), 1u);
  EXPECT_EQ(table.export_block(block), 0u);
  EXPECT_EQ(state(block), BlockState::closing);
}

TEST_F(BlockTableTest, WaitsInLimboForEveryBorrower) {
  table.attach(a.page);
  table.attach(b.page);
  const std::uint32_t block = lend();
  ASSERT_TRUE(claim(a, block));
  ASSERT_TRUE(claim(b, block));
  EXPECT_TRUE(table.is_claimed(block));
  EXPECT_FALSE(table.free_block(block));
  EXPECT_EQ(table.limbo_size(), 1u);
  EXPECT_EQ(table.live(), 0u);
  release(a, block);
  EXPECT_TRUE(drain().empty());
  release(b, block);
  EXPECT_EQ(drain(), Blocks{block});
  EXPECT_EQ(state(block), BlockState::free);
  EXPECT_EQ(table.limbo_size(), 0u);
}

TEST_F(BlockTableTest, LooksOnlyAtWhatIsMarked) {
  table.attach(a.page);
  const std::uint32_t first = lend(), second = lend();
  ASSERT_TRUE(claim(a, first) && claim(a, second));
  ASSERT_FALSE(table.free_block(first) || table.free_block(second));
  a.slots[first] = 0;  // as if killed before the mark
  release(a, second);
  EXPECT_EQ(drain(), Blocks{second});
  EXPECT_EQ(rescan(), Blocks{first});
}

TEST_F(BlockTableTest, BelievesNoMark) {
  table.attach(a.page);
  const std::uint32_t held = lend(), live = lend();
  ASSERT_TRUE(claim(a, held));
  ASSERT_FALSE(table.free_block(held));
  for (const std::uint32_t block : {held, live, kBlocks - 1}) a.page.hints().mark(block);
  EXPECT_TRUE(drain().empty());
  EXPECT_EQ(state(held), BlockState::closing);
  EXPECT_EQ(state(live), BlockState::exported);
}

TEST_F(BlockTableTest, ForgetsTheClaimsOfADetachedBorrower) {
  const auto page = table.attach(a.page);
  const std::uint32_t block = lend();
  ASSERT_TRUE(claim(a, block));
  ASSERT_FALSE(table.free_block(block));
  table.detach(page);
  EXPECT_EQ(rescan(), Blocks{block});
}

TEST_F(BlockTableTest, HoldsEverythingForAnAnnouncedChild) {
  const auto parent = table.attach(a.page);
  announce_child(a.page);
  const std::uint32_t block = lend();
  EXPECT_FALSE(table.free_block(block));
  b.header.all = 1;
  table.attach(b.page);
  table.attach_child(parent);
  EXPECT_TRUE(rescan().empty()) << "the child has not said yet what it holds";
  take_over_claims(b.page, kBlocks, [](std::uint32_t) { return 0u; });
  EXPECT_EQ(drain(), Blocks{block});
}

TEST_F(BlockTableTest, SaysWhatIsInLimboByTheGenerationOfItsHandles) {
  table.attach(a.page);
  const std::uint32_t block = lend();
  EXPECT_FALSE(table.is_in_limbo(block, 0)) << "not freed";
  ASSERT_TRUE(claim(a, block));
  ASSERT_FALSE(table.free_block(block));
  EXPECT_TRUE(table.is_in_limbo(block, 0));
  EXPECT_FALSE(table.is_in_limbo(block, 1));
  EXPECT_FALSE(table.is_in_limbo(kBlocks + 5, 0)) << "no such block";
  release(a, block);
  ASSERT_EQ(drain(), Blocks{block});
  EXPECT_FALSE(table.is_in_limbo(block, 0)) << "too late";
}

TEST_F(BlockTableTest, TakesAFreedBlockBackWhileItIsInLimbo) {
  table.attach(a.page);
  const std::uint32_t block = lend();
  ASSERT_TRUE(claim(a, block));
  EXPECT_FALSE(table.try_revive(block, 0)) << "not freed";
  ASSERT_FALSE(table.free_block(block));
  ASSERT_TRUE(table.try_revive(block, 0));
  EXPECT_EQ(table.record(block).word, make_word(0, BlockState::exported));
  EXPECT_EQ(table.limbo_size(), 0u);
  release(a, block);
  EXPECT_TRUE(drain().empty());
  EXPECT_TRUE(table.free_block(block));
  EXPECT_FALSE(table.try_revive(block, 0)) << "too late";
}

TEST_F(BlockTableTest, GivesEachLifeOfABlockItsOwnGeneration) {
  for (std::uint64_t life = 0; life < 5; ++life) {
    const std::uint32_t block = add();
    ASSERT_EQ(block, 0u);
    EXPECT_EQ(generation(block), life);
    if (life % 2 == 0) table.export_block(block);
    ASSERT_TRUE(table.free_block(block));
    table.give_back(block);
  }
}

TEST_F(BlockTableTest, BringsAFullLimboHomeInAnyOrder) {
  table.attach(a.page);
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    const std::uint32_t block = lend();
    ASSERT_TRUE(claim(a, block));
  }
  for (std::uint32_t i = 0; i < kBlocks; ++i) ASSERT_FALSE(table.free_block(i));
  EXPECT_EQ(table.limbo_size(), kBlocks);
  std::size_t home = 0;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    release(a, i * 37 % kBlocks);
    if (i % 3 == 0) home += drain().size();
  }
  home += drain().size();
  EXPECT_EQ(home, kBlocks);
  EXPECT_EQ(table.limbo_size(), 0u);
  EXPECT_EQ(table.live(), 0u);
}

TEST(BlockTable, CountsFourMillionBlocks) {
  constexpr std::uint32_t kMany = 4u << 20;
  std::vector<Table::Record> records(kMany);
  Table table(records.data(), kMany);
  for (std::uint32_t i = 0; i < kMany; ++i) ASSERT_EQ(table.take(), i);
  EXPECT_EQ(table.take(), kMany);
  table.publish(kMany - 1);
  table.export_block(kMany - 1);
  EXPECT_TRUE(table.free_block(kMany - 1));
  table.give_back(kMany - 1);
  EXPECT_EQ(table.take(), kMany - 1);
}

}  // namespace
}  // namespace onecopy
