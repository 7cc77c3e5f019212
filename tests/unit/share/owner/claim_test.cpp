// SPDX-License-Identifier: Apache-2.0
#include "share/owner/claim.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace onecopy {
namespace {

constexpr std::uint32_t kCapacity = 4u << 20;

/// Words of a full-size page; new[] of zeroes costs only the touched ones.
class MarkedPage {
 public:
  using Word = Hints<RealPlatform>::Word;
  Word top{0};
  std::unique_ptr<Word[]> middle{new Word[kCapacity / 4096]()};
  std::unique_ptr<Word[]> leaves{new Word[kCapacity / 64]()};
  Hints<RealPlatform> hints{&top, middle.get(), leaves.get()};

  std::vector<std::uint32_t> take() {
    std::vector<std::uint32_t> taken;
    hints.take([&](std::uint32_t block) { taken.push_back(block); });
    return taken;
  }
};

class Claim : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kGeneration = 7;
  void set(std::uint64_t generation, BlockState state) { record_.word = make_word(generation, state); }
  std::uint32_t slot() const { return slots_[0]; }
  bool marked() { return page_.hints().any(); }
  bool claim() { return try_claim(page_, record_, 0, kGeneration); }

  ClaimPageHeader<RealPlatform> header_{};
  std::atomic<std::uint32_t> slots_[4]{};
  std::vector<std::atomic<std::uint64_t>> middle_ = std::vector<std::atomic<std::uint64_t>>(16);
  std::atomic<std::uint64_t> leaves_[1]{};
  ClaimPage<RealPlatform> page_{&header_, slots_, middle_.data(), leaves_};
  BlockRecord<RealPlatform> record_{};
};

TEST(Word, KeepsGenerationAndStateApart) {
  for (const auto state : {BlockState::free, BlockState::live, BlockState::exported, BlockState::closing})
    for (const std::uint64_t generation : {std::uint64_t{0}, std::uint64_t{1}, kMaxGeneration}) {
      EXPECT_EQ(state_of(make_word(generation, state)), state);
      EXPECT_EQ(generation_of(make_word(generation, state)), generation);
    }
}

TEST(Word, ClosingShowsTheNextGenerationAndIsHeldByThePreviousOne) {
  EXPECT_EQ(closing_word(41), make_word(42, BlockState::closing));
  EXPECT_EQ(held_generation(closing_word(41)), 41u);
  EXPECT_EQ(held_generation(make_word(41, BlockState::exported)), 41u);
  EXPECT_EQ(held_generation(closing_word(kMaxGeneration)), kMaxGeneration) << "wraps to 0 and back";
}

TEST(Hints, ReturnEachMarkOnce) {
  MarkedPage page;
  EXPECT_FALSE(page.hints.any());
  for (const std::uint32_t block : {5u, 5u, 3u}) page.hints.mark(block);
  EXPECT_TRUE(page.hints.any());
  EXPECT_EQ(page.take(), (std::vector<std::uint32_t>{3, 5}));
  EXPECT_FALSE(page.hints.any());
  EXPECT_TRUE(page.take().empty());
}

TEST(Hints, KnowTheEdgesOfEveryLevel) {
  const std::vector<std::uint32_t> edges{0,     63,    64,     127,    4095,           4096,
                                         65535, 65536, 131071, 131072, kCapacity - 64, kCapacity - 1};
  for (const std::uint32_t block : edges) {
    MarkedPage page;
    page.hints.mark(block);
    EXPECT_EQ(page.take(), std::vector<std::uint32_t>{block});
  }
  MarkedPage all;
  for (const std::uint32_t block : edges) all.hints.mark(block);
  EXPECT_EQ(all.take(), edges);
}

TEST(Hints, LeaveNothingBehindInAnyLevel) {
  MarkedPage page;
  for (std::uint32_t block = 0; block < kCapacity; block += 977) page.hints.mark(block);
  EXPECT_EQ(page.take().size(), (kCapacity + 976) / 977);
  for (std::uint32_t i = 0; i < kCapacity / 4096; ++i) ASSERT_EQ(page.middle[i], 0u) << i;
  for (std::uint32_t i = 0; i < kCapacity / 64; ++i) ASSERT_EQ(page.leaves[i], 0u) << i;
}

TEST(Hints, SeeEveryMarkOfManyThreads) {
  MarkedPage page;
  constexpr std::uint32_t kEach = 2000;
  std::vector<std::thread> markers;
  for (std::uint32_t t = 0; t < 4; ++t)
    markers.emplace_back([&page, t] {
      for (std::uint32_t i = 0; i < kEach; ++i) page.hints.mark((i * 4 + t) * 131 % kCapacity);
    });
  std::vector<bool> seen(kCapacity);
  const auto look = [&] { page.hints.take([&](std::uint32_t block) { seen[block] = true; }); };
  for (int i = 0; i < 100; ++i) look();
  for (std::thread& m : markers) m.join();
  look();
  for (std::uint32_t i = 0; i < 4 * kEach; ++i) ASSERT_TRUE(seen[i * 131 % kCapacity]) << i;
}

TEST_F(Claim, HoldsWhatTheHandleNamed) {
  set(kGeneration, BlockState::exported);
  EXPECT_TRUE(claim());
  EXPECT_TRUE(claim());
  EXPECT_EQ(slot(), 2u);
  release_claim(page_, record_, 0);
  release_claim(page_, record_, 0);
  EXPECT_EQ(slot(), 0u);
  EXPECT_FALSE(marked()) << "the owner still has it: nothing to look at";
}

TEST_F(Claim, HoldsNothingWhenStale) {
  for (const auto state : {BlockState::free, BlockState::live, BlockState::closing}) {
    set(kGeneration, state);
    EXPECT_FALSE(claim());
  }
  for (const std::uint64_t other : {kGeneration - 1, kGeneration + 1}) {
    set(other, BlockState::exported);
    EXPECT_FALSE(claim());
  }
  EXPECT_EQ(slot(), 0u);
}

TEST_F(Claim, LeavesAMarkWhenTheLastClaimOfAClosingBlockGoes) {
  set(kGeneration, BlockState::exported);
  ASSERT_TRUE(claim());
  ASSERT_TRUE(claim());
  set(kGeneration + 1, BlockState::closing);
  release_claim(page_, record_, 0);
  EXPECT_FALSE(marked());
  release_claim(page_, record_, 0);
  EXPECT_TRUE(marked());
}

TEST_F(Claim, LeavesAMarkWhenItFailsOnAClosingBlock) {
  record_.word = closing_word(kGeneration);
  EXPECT_FALSE(claim());
  EXPECT_TRUE(marked()) << "its slot may have been what kept the block in limbo";
}

TEST_F(Claim, AsksTheOwnerOfAClosingBlockOnlyAndWithTheSlotRaised) {
  int asked = 0;
  std::uint32_t slot_when_asked = 0;
  bool answer = true;
  const auto ask = [&] { return ++asked, slot_when_asked = slot(), answer; };
  record_.word = closing_word(kGeneration);
  EXPECT_TRUE(try_claim(page_, record_, 0, kGeneration, ask));
  EXPECT_EQ(slot_when_asked, 1u);
  answer = false;
  EXPECT_FALSE(try_claim(page_, record_, 0, kGeneration, ask));
  EXPECT_EQ(slot(), 1u);
  record_.word = closing_word(kGeneration + 1);
  EXPECT_FALSE(try_claim(page_, record_, 0, kGeneration, ask));
  set(kGeneration, BlockState::exported);
  EXPECT_TRUE(try_claim(page_, record_, 0, kGeneration, ask));
  EXPECT_EQ(asked, 2);
}

TEST_F(Claim, TakesOverExactCountsAfterAFork) {
  announce_child(page_);
  EXPECT_EQ(header_.announced, 1u);
  header_.all = 1;
  const std::uint32_t counts[] = {2, 0, 1, 5};
  take_over_claims(page_, 3, [&](std::uint32_t block) { return counts[block]; });
  EXPECT_EQ(slots_[0], 2u);
  EXPECT_EQ(slots_[1], 0u);
  EXPECT_EQ(slots_[2], 1u);
  EXPECT_EQ(slots_[3], 0u) << "beyond the end";
  EXPECT_EQ(header_.all, 0u);
  EXPECT_EQ(header_.rescan, 1u);
}

}  // namespace
}  // namespace onecopy
