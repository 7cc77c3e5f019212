// SPDX-License-Identifier: Apache-2.0
#include "share/broker/connection_stage.h"

#include <gtest/gtest.h>

#include <chrono>

namespace onecopy {
namespace {

using namespace std::chrono_literals;

constexpr auto kSilence = 5s;

/// A sight of a process that lives, `after` the start of the test.
Sight sight(std::chrono::milliseconds after = 0ms) {
  static const auto start = std::chrono::steady_clock::now();
  Sight seen;
  seen.now = start + after;
  seen.maps_page = [] { return true; };
  return seen;
}

TEST(Stranger, MayBeSilentForAWhileFromTheFirstLookOn) {
  Stranger stranger;
  EXPECT_EQ(stranger.poll(sight(1h), kSilence), Step::look_again) << "the watch thread was late";
  EXPECT_EQ(stranger.poll(sight(1h + kSilence), kSilence), Step::look_again);
  EXPECT_EQ(stranger.poll(sight(1h + kSilence + 1ms), kSilence), Step::drop);
}

TEST(Stranger, WhoseMessageIsNotReadYetStays) {
  Stranger stranger;
  stranger.poll(sight(), kSilence);
  Sight late = sight(1h);
  late.has_spoken = true;
  EXPECT_EQ(stranger.poll(late, kSilence), Step::look_again);
  late.has_spoken = false;
  EXPECT_EQ(stranger.poll(late, kSilence), Step::drop);
}

TEST(AttachedBorrower, ThatHangsUpAndLivesIsLookedAt) {
  EXPECT_EQ(Borrower::hang_up(sight()), Step::look_again);
}

TEST(AttachedBorrower, ThatHangsUpByItsDeathHasEnded) {
  Sight seen = sight();
  seen.has_exited = true;
  EXPECT_EQ(Borrower::hang_up(seen), Step::end);
}

/// A forked child that never attached, for one.
TEST(AttachedBorrower, WhoseProcessIsNotKnownEndsWithItsConnection) {
  Sight seen = sight();
  seen.has_pidfd = false;
  EXPECT_EQ(Borrower::hang_up(seen), Step::end);
}

TEST(HungUpBorrower, EndsWhenItMapsItsPageNoMore) {
  HungUp borrower;
  Sight seen = sight();
  seen.maps_page = [] { return false; };
  EXPECT_EQ(borrower.poll(seen), Step::end);
}

TEST(HungUpBorrower, HasItsMappingsReadLessAndLess) {
  HungUp borrower;
  int reads = 0;
  Sight seen = sight();
  seen.maps_page = [&] { return ++reads > 0; };
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(borrower.poll(seen), Step::look_again);
  EXPECT_LE(reads, 20);
  EXPECT_GE(reads, 1);
}

/// A device may still be at work for a process that has become another program.
TEST(HungUpBorrower, WithMemoryOfADeviceEndsWithItsProcessOnly) {
  HungUp borrower;
  Sight seen = sight();
  seen.has_device_memory = true;
  seen.maps_page = [] { return false; };
  EXPECT_EQ(borrower.poll(seen), Step::wait);
  seen.has_exited = true;
  EXPECT_EQ(borrower.poll(seen), Step::end);
}

Step look_for_children(MaybeForked& parent, std::optional<bool> seen_children) {
  Sight seen = sight();
  seen.may_have_children = seen_children;
  return parent.poll(seen);
}

TEST(BorrowerThatMayHaveForked, IsReleasedAfterTwoLooksInARowWithoutAChild) {
  MaybeForked parent{true};
  EXPECT_EQ(look_for_children(parent, false), Step::look_again);
  EXPECT_EQ(look_for_children(parent, true), Step::look_again);
  EXPECT_EQ(look_for_children(parent, false), Step::look_again);
  EXPECT_EQ(look_for_children(parent, {}), Step::look_again) << "no look";
  EXPECT_EQ(look_for_children(parent, false), Step::release);
}

TEST(BorrowerThatMayHaveForked, InAnotherPidNamespaceStays) {
  MaybeForked parent{false};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(look_for_children(parent, false), Step::wait);
}

}  // namespace
}  // namespace onecopy
