// SPDX-License-Identifier: Apache-2.0
#include "onecopy/graph/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "onecopy/core/error.h"
#include "support/refusal.h"

namespace onecopy::graph {
namespace {

using onecopy::testing::expect_refusal;

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(Arena, TakesWhatItsLargestWindowTakesInAnyOrder) {
  std::vector<std::size_t> sizes{3 * kMiB, 17 * kMiB, 64, 9 * kMiB};
  std::sort(sizes.begin(), sizes.end());
  do {
    const auto arena = Arena::make(kCpu);
    std::vector<Window> windows;
    for (const std::size_t bytes : sizes) windows.push_back(arena->open(bytes));
    EXPECT_EQ(arena->footprint().shared, 18 * kMiB);
    EXPECT_EQ(arena->footprint().windows, sizes.size());
  } while (std::next_permutation(sizes.begin(), sizes.end()));
}

TEST(Arena, ShowsTheSamePagesInEachWindowAtAddressesOfItsOwn) {
  const auto arena = Arena::make(kCpu);
  const Window first = arena->open(5 * kMiB);
  const Window second = arena->open(3 * kMiB);
  const bool apart =
      first.base() + first.size() <= second.base() || second.base() + second.size() <= first.base();
  EXPECT_TRUE(apart);
  std::memset(first.base(), 7, first.size());
  EXPECT_EQ(second.base()[0], std::byte{7});
  EXPECT_EQ(second.base()[second.size() - 1], std::byte{7});
  second.base()[2 * kMiB] = std::byte{9};
  EXPECT_EQ(first.base()[2 * kMiB], std::byte{9});
}

TEST(Arena, AWindowThatIsAssignedToItselfStays) {
  const auto arena = Arena::make(kCpu);
  Window window = arena->open(kMiB);
  std::byte* const base = window.base();
  Window& same = window;
  window = std::move(same);
  EXPECT_EQ(window.base(), base);
  window = arena->open(2 * kMiB);
  EXPECT_EQ(arena->footprint().windows, 1U);
}

TEST(Arena, GivesPagesBackThatNoWindowShows) {
  const auto arena = Arena::make(kCpu);
  const Window small = arena->open(kMiB);
  {
    const Window large = arena->open(40 * kMiB);
    EXPECT_EQ(arena->footprint().shared, 40 * kMiB);
  }
  EXPECT_EQ(arena->footprint().shared, 2 * kMiB);
  EXPECT_EQ(arena->footprint().windows, 1U);
  small.base()[0] = std::byte{1};
}

TEST(Arena, HasFewPagesForLargeWindowsAndWastesLittle) {
  const auto arena = Arena::make(kCpu);
  const Window window = arena->open(300 * kMiB + 1);
  EXPECT_EQ(arena->footprint().shared, 302 * kMiB);
  EXPECT_EQ(arena->footprint().mappings, 7U);
  const Window larger = arena->open(310 * kMiB);
  EXPECT_EQ(arena->footprint().shared, 310 * kMiB);
  EXPECT_EQ(arena->footprint().mappings, 7U + 8);
}

TEST(Arena, KeepsFewTimesWhatASmallWindowNeedsOfALargeOneThatHasEnded) {
  for (const std::size_t small : {std::size_t{1}, 3 * kMiB, 11 * kMiB}) {
    const auto arena = Arena::make(kCpu);
    auto large = std::make_unique<Window>(arena->open(60 * kMiB));
    const Window held = arena->open(small);
    large.reset();
    EXPECT_LE(arena->footprint().shared, std::max(2 * kMiB, 5 * small)) << small;
  }
}

TEST(Arena, GivesBackAllButTheRestOfAPageThatASmallerWindowShows) {
  const auto arena = Arena::make(kCpu);
  auto large = std::make_unique<Window>(arena->open(200 * kMiB));
  const Window small = arena->open(65 * kMiB);
  large.reset();
  EXPECT_EQ(arena->footprint().shared, 114 * kMiB);
  EXPECT_EQ(small.size(), 65 * kMiB);
}

TEST(Arena, RefusesWhatIsBeyondItsLimitAndIsUnchanged) {
  const auto arena = Arena::make(kCpu, {8 * kMiB});
  const Window window = arena->open(8 * kMiB);
  expect_refusal(ErrorCode::out_of_memory, {"limit is 8388608"}, [&] { (void)arena->open(8 * kMiB + 1); });
  EXPECT_EQ(arena->footprint().shared, 8 * kMiB);
  EXPECT_EQ(arena->footprint().windows, 1U);
  expect_refusal(ErrorCode::invalid_argument, {"0 bytes"}, [&] { (void)arena->open(0); });
}

TEST(Arena, RefusesSizesThatNoMachineHas) {
  const auto arena = Arena::make(kCpu);
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - kMiB, SIZE_MAX / 2 + 1})
    expect_refusal(ErrorCode::out_of_memory, {"needs"}, [&] { (void)arena->open(bytes); });
  expect_refusal(ErrorCode::out_of_memory, {"cannot reserve"},
                 [&] { (void)arena->open_growing(SIZE_MAX); });
  EXPECT_EQ(arena->footprint().windows, 0U);
}

TEST(Arena, ParkedKeepsAddressesAndNoMemory) {
  const auto arena = Arena::make(kCpu);
  const Window first = arena->open(5 * kMiB);
  const Window second = arena->open(3 * kMiB);
  std::byte* const base = first.base();
  arena->park();
  EXPECT_EQ(arena->footprint().shared, 0U);
  EXPECT_TRUE(arena->footprint().parked);
  expect_refusal(ErrorCode::invalid_argument, {"parked", "resume"}, [&] { (void)arena->open(kMiB); });
  arena->resume();
  EXPECT_EQ(arena->footprint().shared, 6 * kMiB);
  EXPECT_EQ(first.base(), base);
  first.base()[5] = std::byte{3};
  EXPECT_EQ(second.base()[5], std::byte{3});
  arena->resume();  // without effect
  EXPECT_FALSE(arena->footprint().parked);
}

TEST(Arena, AWindowMayEndWhileItIsParked) {
  const auto arena = Arena::make(kCpu);
  const Window small = arena->open(kMiB);
  {
    const Window large = arena->open(9 * kMiB);
    arena->park();
  }
  arena->resume();
  EXPECT_EQ(arena->footprint().shared, 2 * kMiB);
  small.base()[0] = std::byte{1};
}

TEST(Window, GrowsInPlaceOverThePagesOfAll) {
  const auto arena = Arena::make(kCpu);
  const Window first = arena->open(9 * kMiB);
  Window second = arena->open_growing(64 * kMiB);
  EXPECT_EQ(second.size(), 0U);
  std::byte* const base = second.base();
  second.grow(kMiB);
  std::memset(base, 5, kMiB);
  second.grow(12 * kMiB);
  EXPECT_EQ(second.base(), base);
  EXPECT_EQ(second.size(), 12 * kMiB);
  EXPECT_EQ(base[0], std::byte{5});
  EXPECT_EQ(first.base()[0], std::byte{5});
  EXPECT_EQ(arena->footprint().shared, 12 * kMiB);
  expect_refusal(ErrorCode::out_of_mappings, {"addresses for 67108864"}, [&] { second.grow(65 * kMiB); });
  EXPECT_EQ(second.size(), 12 * kMiB);
}

TEST(Window, GrowsToTheLimitAndIsUnchangedBeyondIt) {
  const auto arena = Arena::make(kCpu, {8 * kMiB});
  Window window = arena->open_growing(64 * kMiB);
  window.grow(6 * kMiB);
  expect_refusal(ErrorCode::out_of_memory, {"limit is 8388608"}, [&] { window.grow(9 * kMiB); });
  EXPECT_EQ(arena->footprint().shared, 6 * kMiB);
  window.grow(8 * kMiB);
  window.base()[8 * kMiB - 1] = std::byte{1};
}

TEST(Window, HasPagesOfItsOwnThatNoOtherWrites) {
  const auto arena = Arena::make(kCpu);
  Window first = arena->open(6 * kMiB);
  const Window second = arena->open(6 * kMiB);
  const Extent across{.from = 2 * kMiB - 1, .bytes = 2};
  first.make_own(std::span(&across, 1));
  EXPECT_EQ(first.own_bytes(), 4 * kMiB);
  EXPECT_EQ(arena->footprint().own, 4 * kMiB);
  std::memset(first.base(), 3, 6 * kMiB);
  std::memset(second.base(), 8, 6 * kMiB);
  EXPECT_EQ(first.base()[0], std::byte{3});
  EXPECT_EQ(first.base()[4 * kMiB - 1], std::byte{3});
  first.make_own(std::span(&across, 1));  // again: without effect
  EXPECT_EQ(first.own_bytes(), 4 * kMiB);
}

TEST(Window, SharesThePartsAroundItsOwnWithOthersThatHaveSuch) {
  const auto arena = Arena::make(kCpu);
  Window first = arena->open(40 * kMiB);
  Window second = arena->open(40 * kMiB);
  const Extent early{.from = 10 * kMiB, .bytes = 1}, late{.from = 39 * kMiB, .bytes = 1};
  first.make_own(std::span(&early, 1));
  EXPECT_EQ(arena->footprint().shared, (40 + 28) * kMiB);  // the second shows the page of 30 MiB whole
  second.make_own(std::span(&late, 1));
  EXPECT_EQ(arena->footprint().shared, 40 * kMiB);  // in parts, each shown by one of the two at least
  EXPECT_EQ(arena->footprint().own, 4 * kMiB);
  std::memset(first.base(), 3, 40 * kMiB);
  EXPECT_EQ(second.base()[20 * kMiB], std::byte{3});
  EXPECT_EQ(arena->footprint().mappings, 2 * (2 + 15U));
}

TEST(Window, ShowsAPageInPartsWhereItHasNoOtherMemory) {
  const auto arena = Arena::make(kCpu);
  Window first = arena->open(40 * kMiB);
  const Extent early{.from = 10 * kMiB, .bytes = 1};
  first.make_own(std::span(&early, 1));
  EXPECT_EQ(arena->footprint().shared, 38 * kMiB);
  {
    const Window second = arena->open(40 * kMiB);
    EXPECT_EQ(arena->footprint().shared, 40 * kMiB);
    std::memset(second.base(), 8, 40 * kMiB);
    EXPECT_EQ(first.base()[39 * kMiB], std::byte{8});
    arena->park();
    arena->resume();
    std::memset(second.base(), 9, 40 * kMiB);
    EXPECT_EQ(first.base()[39 * kMiB], std::byte{9});
  }
  first = Window();
  const Window third = arena->open(40 * kMiB);
  EXPECT_EQ(arena->footprint().mappings, 3U);
  EXPECT_EQ(arena->footprint().shared, 40 * kMiB);
}

TEST(Window, KeepsItsOwnPagesWhileTheArenaIsParked) {
  const auto arena = Arena::make(kCpu);
  Window window = arena->open(4 * kMiB);
  const Extent begin{.from = 0, .bytes = 1};
  window.make_own(std::span(&begin, 1));
  window.base()[0] = std::byte{6};
  arena->park();
  EXPECT_EQ(window.base()[0], std::byte{6});
  EXPECT_EQ(arena->footprint().own, 2 * kMiB);
  expect_refusal(ErrorCode::invalid_argument, {"parked"}, [&] { window.grow(8 * kMiB); });
  expect_refusal(ErrorCode::invalid_argument, {"parked"}, [&] { window.make_own(std::span(&begin, 1)); });
  arena->resume();
  EXPECT_EQ(window.base()[0], std::byte{6});
  window.base()[3 * kMiB] = std::byte{1};
}

TEST(Window, RetiredKeepsAddressesAndWhatIsItsOwn) {
  const auto arena = Arena::make(kCpu);
  const Window small = arena->open(2 * kMiB);
  Window large = arena->open(40 * kMiB);
  const Extent begin{.from = 0, .bytes = 1};
  large.make_own(std::span(&begin, 1));
  large.base()[0] = std::byte{6};
  large.retire();
  EXPECT_EQ(arena->footprint().shared, 2 * kMiB);
  EXPECT_EQ(arena->footprint().own, 2 * kMiB);
  EXPECT_EQ(large.base()[0], std::byte{6});
  arena->park();
  arena->resume();
  EXPECT_EQ(arena->footprint().shared, 2 * kMiB);
  EXPECT_EQ(large.base()[0], std::byte{6});
}

TEST(Window, KeepsItsArena) {
  Window window = Arena::make(kCpu)->open(kMiB);
  window.base()[0] = std::byte{4};
  Window other = std::move(window);
  EXPECT_EQ(other.base()[0], std::byte{4});
  EXPECT_EQ(window.base(),
            nullptr);  // NOLINT(bugprone-use-after-move): what moving leaves is part of the promise
  other = Window();
  EXPECT_EQ(other.size(), 0U);
}

TEST(Window, ThatWasMovedFromThrows) {
  Window window = Arena::make(kCpu)->open(kMiB);
  const Window other = std::move(window);
  // NOLINTBEGIN(bugprone-use-after-move): what moving leaves is part of the promise
  expect_refusal(ErrorCode::closed, {"this Window was moved from"}, [&] { window.grow(kMiB); });
  expect_refusal(ErrorCode::closed, {"this Window was moved from"}, [&] { window.make_own({}); });
  window.retire();
  EXPECT_EQ(window.own_bytes(), 0U);
  // NOLINTEND(bugprone-use-after-move)
}

}  // namespace
}  // namespace onecopy::graph
