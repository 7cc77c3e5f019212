// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/leases.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "os/memfd.h"

namespace onecopy {
namespace {

constexpr std::uint32_t kBlock = 5;
constexpr std::uint64_t kGeneration = 7;

const auto kNobodyToAsk = [] { return false; };

/// Leases of an owner that has exported one block.
class LeasesTest : public ::testing::Test {
 protected:
  LeasesTest() {
    for (std::uint32_t block = 0; block < kBlock; ++block)  // an owner uses its records in order
      table_.as<Record>()[block].word = make_word(1, BlockState::free);
    table_.as<Record>()[kBlock].size = 64;
    table_.as<Record>()[kBlock].word = make_word(kGeneration, BlockState::exported);
    connect(leases);
  }
  void connect(Leases& borrower) {
    borrower.set_table(table_file_);
    borrower.set_page(map_claims(page_.file));
  }
  bool try_claim(std::uint32_t block = kBlock, std::uint64_t generation = kGeneration) {
    return leases.try_claim(block, generation, kNobodyToAsk);
  }
  std::size_t page_bytes() const { return page_.memory.size(); }
  std::uint64_t seen_by_owner() { return claims_in(page_.memory).slot(kBlock).load(); }

  Leases leases;
  void set_word(std::uint64_t word) { table_.as<Record>()[kBlock].word = word; }

 private:
  const Fd table_file_ = create_memfd("table", kTableBytes);
  const Mapping table_ = Mapping::of(table_file_, kTableBytes, Access::read_write);
  const ClaimFile page_ = create_claim_file();
};

TEST_F(LeasesTest, AreSeenByTheOwnerAsLongAsTheyLast) {
  EXPECT_TRUE(try_claim());
  EXPECT_TRUE(try_claim());
  leases.add_reference(kBlock);
  EXPECT_EQ(leases.count(), 3u);
  EXPECT_EQ(seen_by_owner(), 3u);
  for (int i = 0; i < 3; ++i) leases.release(kBlock);
  EXPECT_EQ(leases.count(), 0u);
  EXPECT_EQ(seen_by_owner(), 0u);
}

TEST_F(LeasesTest, AreOfNothingButWhatTheHandleSaid) {
  EXPECT_FALSE(try_claim(kBlock, kGeneration - 1));
  EXPECT_FALSE(try_claim(kBlock + 1));
  EXPECT_FALSE(try_claim(kMaxBlocks));
  EXPECT_EQ(leases.count(), 0u);
  EXPECT_EQ(seen_by_owner(), 0u);
}

TEST_F(LeasesTest, CloseForGoodOnceThereAreNone) {
  ASSERT_TRUE(try_claim());
  EXPECT_FALSE(leases.try_close());
  EXPECT_FALSE(leases.is_closed());
  leases.release(kBlock);
  EXPECT_TRUE(leases.try_close());
  EXPECT_FALSE(try_claim());
  EXPECT_EQ(seen_by_owner(), 0u);
  leases.try_forget();
  EXPECT_FALSE(try_claim()) << "and nothing is touched that may be gone";
  EXPECT_TRUE(leases.is_closed());
}

/// Claimers that come too late may touch memory that has been given back, which would be a crash.
TEST_F(LeasesTest, ThatAreClosedUnderTheirClaimersGiveTheirMemoryBackOnceTheseHaveLeft) {
  for (int round = 0; round < 200; ++round) {
    Leases borrowed;
    connect(borrowed);
    std::atomic<bool> over{false};
    std::atomic<int> claimed{0};
    const auto claim = [&] {
      for (int n = 1; !over; ++n) {
        if (n % 2048 == 0) std::this_thread::yield();  // or it would take long until nothing is held
        if (!borrowed.try_claim(kBlock, kGeneration, kNobodyToAsk)) continue;
        ++claimed;
        borrowed.release(kBlock);
      }
      EXPECT_FALSE(borrowed.try_claim(kBlock, kGeneration, kNobodyToAsk));
      EXPECT_EQ(borrowed.count(), 0u);
    };
    std::thread one(claim), two(claim);
    while (claimed < round % 30) std::this_thread::yield();
    while (!borrowed.try_close()) std::this_thread::yield();
    while (!borrowed.try_forget()) std::this_thread::yield();
    over = true;
    one.join();
    two.join();
  }
}

/// Returns the bytes of the files of that name that this process maps.
std::size_t mapped_bytes(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  std::size_t bytes = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find("/memfd:" + name) != std::string::npos)
      bytes += std::stoull(line.substr(line.find('-') + 1), nullptr, 16) - std::stoull(line, nullptr, 16);
  return bytes;
}

/// What the owner alone needs, the table and the page, is given back, but for the mappings of the test itself.
TEST_F(LeasesTest, OfAnEndedOwnerNeedNeitherItsTableNorItsPage) {
  if (HazardGuard::readers_of(this) == HazardGuard::Readers::unknown) GTEST_SKIP() << "no membarrier(2)";
  ASSERT_TRUE(try_claim());
  const std::size_t table = mapped_bytes("table"), pages = mapped_bytes("onecopy-claims");
  ASSERT_TRUE(leases.try_freeze());
  EXPECT_EQ(mapped_bytes("table"), table - kTableBytes);
  EXPECT_EQ(mapped_bytes("onecopy-claims"), pages - page_bytes());
  EXPECT_TRUE(leases.has(kBlock));
  EXPECT_FALSE(leases.has(kBlock + 1));
  EXPECT_EQ(leases.describe(kBlock).size, 64u);
  EXPECT_TRUE(leases.is_seen());
  EXPECT_FALSE(leases.is_hole_under_way(1));
  leases.note_pin(1), leases.end_pin(1);
  leases.begin_transit(kBlock, 1), leases.end_transit(kBlock);
  EXPECT_EQ(file_size(leases.copy_table()), kTableBytes);
}

TEST_F(LeasesTest, OfAnEndedOwnerAreTakenRetainedAndReleasedUntilNoneIsLeft) {
  ASSERT_TRUE(try_claim());
  ASSERT_TRUE(leases.try_freeze());
  EXPECT_TRUE(try_claim());
  leases.add_reference(kBlock);
  EXPECT_EQ(leases.count(), 3u);
  EXPECT_FALSE(try_claim(kBlock, kGeneration - 1));
  EXPECT_FALSE(try_claim(kBlock + 1));
  EXPECT_FALSE(try_claim(kMaxBlocks - 1));
  for (int left = 3; left > 0; --left) {
    EXPECT_FALSE(leases.try_close());
    leases.release(kBlock);
  }
  EXPECT_TRUE(leases.try_close());
  EXPECT_TRUE(leases.try_forget());
  EXPECT_FALSE(try_claim());
  EXPECT_FALSE(leases.has(kBlock));
  EXPECT_EQ(leases.count(), 0u);
}

/// The owner had freed the block, and its end came before the memory was reused.
TEST_F(LeasesTest, OfAnEndedOwnerAreTakenOfABlockThatWasClosing) {
  ASSERT_TRUE(try_claim());
  set_word(closing_word(kGeneration));
  EXPECT_FALSE(try_claim()) << "while only the owner could tell";
  ASSERT_TRUE(leases.try_freeze());
  EXPECT_TRUE(try_claim());
}

TEST_F(LeasesTest, OfACopiedTableNeedNoPage) {
  Leases frozen;
  frozen.set_frozen_table(leases.copy_table());
  EXPECT_TRUE(frozen.try_freeze());
  EXPECT_TRUE(frozen.try_claim(kBlock, kGeneration, kNobodyToAsk));
  frozen.go_on_in_child({});
  EXPECT_EQ(frozen.count(), 1u);
  frozen.release(kBlock);
  EXPECT_TRUE(frozen.try_close());
}

/// A thread that is in the middle of a claim may touch the page and the table, which would be a crash; a lease that it
/// takes must not be overlooked.
TEST_F(LeasesTest, AreFrozenUnderTheirClaimersAndLoseNoLease) {
  for (int round = 0; round < 200; ++round) {
    Leases borrowed;
    connect(borrowed);
    std::atomic<bool> over{false};
    std::atomic<int> claimed{0};
    const auto claim = [&] {
      for (int n = 1; !over; ++n) {
        if (n % 64 == 0) std::this_thread::yield();  // or it would take long until no thread is within
        if (!borrowed.try_claim(kBlock, kGeneration, kNobodyToAsk)) continue;
        ++claimed;
        borrowed.add_reference(kBlock);
        borrowed.release(kBlock);
        EXPECT_EQ(borrowed.describe(kBlock).size, 64u);
        borrowed.release(kBlock);
      }
    };
    ASSERT_TRUE(borrowed.try_claim(kBlock, kGeneration, kNobodyToAsk));
    std::thread one(claim), two(claim);
    while (claimed < round % 30) std::this_thread::yield();
    while (!borrowed.try_freeze()) std::this_thread::yield();
    over = true;
    one.join();
    two.join();
    EXPECT_EQ(borrowed.count(), 1u);
    borrowed.release(kBlock);
    EXPECT_TRUE(borrowed.try_close());
  }
}

TEST_F(LeasesTest, OfAChildAreItsOwn) {
  ASSERT_TRUE(try_claim());
  leases.add_reference(kBlock);
  const ClaimFile childs = create_claim_file();
  claims_in(childs.memory).header().all.store(1);
  leases.go_on_in_child(map_claims(childs.file));
  EXPECT_EQ(claims_in(childs.memory).slot(kBlock).load(), 2u);
  EXPECT_EQ(claims_in(childs.memory).header().all.load(), 0u);
  leases.release(kBlock);
  EXPECT_EQ(claims_in(childs.memory).slot(kBlock).load(), 1u);
  EXPECT_EQ(seen_by_owner(), 2u) << "the parent's";
}

TEST_F(LeasesTest, OfAChildThatGotNoPageAreSeenByNobody) {
  ASSERT_TRUE(try_claim());
  leases.go_on_in_child({});
  leases.add_reference(kBlock);
  EXPECT_EQ(leases.count(), 2u);
  EXPECT_EQ(seen_by_owner(), 1u) << "the parent's";
}

}  // namespace
}  // namespace onecopy
