// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/leases.h"

#include <gtest/gtest.h>

#include <atomic>
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
  std::uint64_t seen_by_owner() { return claims_in(page_.memory).slot(kBlock).load(); }

  Leases leases;

 private:
  const Fd table_file_ = create_memfd("table", kTableBytes);
  const Mapping table_ = Mapping::of(table_file_, kTableBytes, Access::read_write);
  const ClaimFile page_ = create_claim_file();
};

TEST_F(LeasesTest, AreSeenByTheOwnerAsLongAsTheyLast) {
  EXPECT_TRUE(try_claim());
  EXPECT_TRUE(try_claim());
  leases.retain(kBlock);
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

TEST_F(LeasesTest, OfAChildAreItsOwn) {
  ASSERT_TRUE(try_claim());
  leases.retain(kBlock);
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
  leases.retain(kBlock);
  EXPECT_EQ(leases.count(), 2u);
  EXPECT_EQ(seen_by_owner(), 1u) << "the parent's";
}

}  // namespace
}  // namespace onecopy
