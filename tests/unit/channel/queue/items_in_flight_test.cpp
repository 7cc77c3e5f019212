// SPDX-License-Identifier: Apache-2.0
// The blocks that a putter keeps until their items are taken, and the time of their release.
#include "channel/queue/items_in_flight.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "onecopy/core/error.h"
#include "share/owner/shared_blocks.h"

namespace onecopy {
namespace {

/// Counts the references and transits of its blocks.
class Blocks final : public SharedBlocks {
 public:
  BlockRef take(std::uint32_t number) {
    add_reference(number);
    return {this, number};
  }
  int references() const { return references_; }
  int in_transit() const { return in_transit_; }

  void add_reference(std::uint32_t) noexcept override { ++references_; }
  void release(std::uint32_t) noexcept override { --references_; }
  void begin_transit(std::uint32_t, std::uint64_t) noexcept override { ++in_transit_; }
  void end_transit(std::uint32_t) noexcept override { --in_transit_; }
  const ProcessId& owner() const noexcept override { return owner_; }
  ProcessOrigin origin() const noexcept override { return {}; }
  ExportedBlock export_block(std::uint32_t, Access) override { return {}; }
  std::span<std::byte> bytes_of(std::uint32_t, Access) override { return {}; }
  ExportedMemory export_segment(std::uint32_t, Access) const override { return {}; }
  Fd export_table() const override { return {}; }
  std::byte* allow(std::uint32_t, Access, int) override { return nullptr; }

 private:
  ProcessId owner_{};
  std::atomic<int> references_{0};
  std::atomic<int> in_transit_{0};
};

/// Returns a ring whose head no test moves.
const Ring& idle_ring() {
  static const Ring ring{RingOptions{}};
  return ring;
}

void push(ItemsInFlight& items, Blocks& blocks, std::uint64_t position, std::uint32_t count = 1) {
  std::vector<BlockRef> some;
  for (std::uint32_t i = 0; i < count; ++i) some.push_back(blocks.take(i));
  items.push(position, some);
}

TEST(ItemsInFlight, KeepsWhatIsNotTaken) {
  Blocks blocks;
  ItemsInFlight items(idle_ring(), 7);
  for (std::uint64_t position = 0; position < 1000; ++position) push(items, blocks, position);
  EXPECT_EQ(blocks.references(), 1000);
  EXPECT_EQ(blocks.in_transit(), 1000);
  EXPECT_TRUE(items.release_taken(300));
  EXPECT_EQ(blocks.references(), 700);
  EXPECT_EQ(blocks.in_transit(), 700);
  EXPECT_FALSE(items.release_taken(1000));
  EXPECT_EQ(blocks.references(), 0);
  EXPECT_TRUE(items.empty());
}

TEST(ItemsInFlight, KnowsWhetherItEndsWithABlock) {
  Blocks blocks, others;
  ItemsInFlight items(idle_ring(), 7);
  const auto ends_with = [&](std::initializer_list<BlockRef> some) {
    return items.ends_with({some.begin(), some.size()});
  };
  EXPECT_FALSE(ends_with({blocks.take(0)}));
  push(items, blocks, 0, 2);
  EXPECT_TRUE(ends_with({blocks.take(1)}));
  EXPECT_FALSE(ends_with({blocks.take(0)}));
  EXPECT_FALSE(ends_with({others.take(1)}));
  EXPECT_FALSE(ends_with({blocks.take(1), blocks.take(1)}));
  EXPECT_FALSE(items.release_taken(1));
  EXPECT_EQ(blocks.references(), 0);
  EXPECT_TRUE(ends_with({blocks.take(1)})) << "put last, taken or not";
}

TEST(ItemsInFlight, KeepsAllBlocksOfAnItemHoweverMany) {
  Blocks blocks;
  ItemsInFlight items(idle_ring(), 7);
  push(items, blocks, 0, 10'000);
  push(items, blocks, 1, 3);
  EXPECT_TRUE(items.release_taken(1));
  EXPECT_EQ(blocks.references(), 3);
}

TEST(ItemsInFlight, TakesOverAReferenceThatIsGiven) {
  Blocks blocks;
  ItemsInFlight items(idle_ring(), 7);
  BlockRef given = blocks.take(1);
  items.push(0, std::move(given));
  EXPECT_FALSE(given);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(blocks.references(), 1);
  EXPECT_EQ(blocks.in_transit(), 1);
  EXPECT_FALSE(items.release_taken(1));
  EXPECT_EQ(blocks.references(), 0);
}

TEST(ItemsInFlight, LetsGoOfBorrowedBlocksBeforeTheirOwnerDoes) {
  Blocks borrowed, own;
  Ring ring{RingOptions{}};
  ItemsInFlight there(ring, 7), back(ring, 8);
  for (std::uint64_t position = 0; position < 1000; ++position) {
    push(there, own, position);
    push(back, borrowed, position);
    there.release_some(ItemsInFlight::Blocks::own);
    back.release_some(ItemsInFlight::Blocks::borrowed);
    ring.put([](std::uint64_t, std::span<std::byte>) { return std::size_t{0}; });
    ring.take([](const RingItem&) { return true; });
    ASSERT_LE(borrowed.references(), 16);
    ASSERT_LE(own.references(), 32);
    if (position >= 16) {
      ASSERT_GE(own.references(), 16);  // so what the owner frees, the borrower has let go of
    }
  }
}

TEST(ItemsInFlight, ForgettingEndsNoTransit) {
  Blocks blocks;
  ItemsInFlight items(idle_ring(), 7);
  for (std::uint64_t position = 0; position < 100; ++position) push(items, blocks, position);
  items.clear();
  EXPECT_EQ(blocks.references(), 0);
  EXPECT_EQ(blocks.in_transit(), 100) << "a forked child must not end what its parent began";
  push(items, blocks, 100);
  EXPECT_FALSE(items.release_taken(101));
  EXPECT_EQ(blocks.references(), 0);
}

TEST(ItemsInFlight, ArePutAndReleasedAtOnce) {
  constexpr std::uint64_t kItems = 50'000;
  Blocks blocks;
  ItemsInFlight items(idle_ring(), 7);
  std::atomic<std::uint64_t> head{0};
  std::thread releaser([&] {
    while (head.load() < kItems) items.release_taken(head.load(), false);
  });
  for (std::uint64_t position = 0; position < kItems; ++position) {
    push(items, blocks, position);
    head.store(position + 1);
  }
  releaser.join();
  EXPECT_FALSE(items.release_taken(kItems));
  EXPECT_EQ(blocks.references(), 0);
  EXPECT_EQ(blocks.in_transit(), 0);
}

}  // namespace
}  // namespace onecopy
