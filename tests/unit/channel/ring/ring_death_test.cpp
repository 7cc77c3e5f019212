// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <csignal>
#include <set>
#include <string>
#include <string_view>

#include "channel/ring/ring.h"
#include "support/child.h"
#include "unit/channel/ring/ring_testing.h"

namespace onecopy {
namespace {

/// Every named point of the ring, and the state that a death there leaves behind.
struct RingPoint {
  const char* name;
  bool put_is_done = false;   ///< the item is in the ring though put() never returned
  bool take_is_done = false;  ///< the item is out of the ring though take() never returned
};

constexpr RingPoint kRingPoints[] = {
    {"lock.begun"},
    {"ring.put.locked"},
    {"ring.chunk.reserved"},
    {"ring.chunk.counted"},
    {"ring.chunk.listed"},
    {"ring.chunk.assigned"},
    {"ring.put.written"},
    {"ring.put.intended"},
    {"ring.put.committed", true},
    {"ring.put.settled", true},
    {"lock.released", true},
    {"ring.put.unlocked", true},
    {"ring.put.armed"},
    {"ring.put.woken"},
    {"ring.take.locked"},
    {"ring.take.found"},
    {"ring.take.accepted"},
    {"ring.take.committed", false, true},
    {"ring.take.unlocked", false, true},
    {"ring.wake.marked", false, true},
    {"ring.wake.woken", false, true},
    {"ring.take.armed"},
    {"ring.take.woken"},
    {"ring.trim.locked"},
    {"ring.trim.marked"},
    {"ring.trim.punched"},
    {"ring.trim.counted"},
    {"ring.close.locked"},
    {"ring.close.closed"},
    {"ring.close.woken"},
};

constexpr std::uint64_t kBound = 5 * kItemsPerChunk + 10;

/// The victim's work, in memory that outlives it.
struct Diary {
  std::atomic<std::uint64_t> puts;
  std::atomic<std::uint64_t> takes;
};

/// Comes past every point, in an order that a survivor can account for: fills the ring to its bound,
/// fails to put one more, empties it, waits in vain (which gives memory back), closes it.
void live_a_whole_life(Ring& ring, Diary& diary) {
  const auto long_enough_to_wait_in =
      std::chrono::milliseconds(100);  // a loaded machine takes a processor away for longer than 5 ms
  while (put_number(ring, diary.puts.load(), Deadline::after(long_enough_to_wait_in))) ++diary.puts;
  while (diary.takes.load() < kBound && take_number(ring, kNow)) ++diary.takes;
  take_number(ring, Deadline::after(2 * kSleepSlice + kSleepSlice / 2));
  ring.close();
}

const char* deadly_point = "";
void die_there(const char* name) noexcept {
  if (std::string_view(name) == deadly_point) ::raise(SIGKILL);
}

/// Puts and takes over several chunks; all arrives.
void expect_to_work(Ring& ring) {
  const std::uint64_t first = ring.tail();
  for (std::uint64_t i = 0; i < 3 * kItemsPerChunk; ++i)
    ASSERT_EQ(put_number(ring, i, in_good_time()), first + i);
  for (std::uint64_t i = 0; i < 3 * kItemsPerChunk; ++i) ASSERT_EQ(take_number(ring, in_good_time()), i);
}

class DeathIn : public ::testing::TestWithParam<RingPoint> {};

TEST_P(DeathIn, LosesNothingAndLetsTheOthersGoOn) {
  Ring ring(RingOptions{.max_items = kBound});
  ring.set_wait_mode(Ring::WaitMode::block);
  const testing::Shared<Diary> diary;
  testing::Child victim([&] {
    deadly_point = GetParam().name;
    point_hook.store(die_there);
    live_a_whole_life(ring, *diary);
  });
  ASSERT_EQ(victim.join(), -SIGKILL) << "it never came past " << GetParam().name;

  const std::uint64_t put = diary->puts + (GetParam().put_is_done ? 1 : 0);
  const std::uint64_t taken = diary->takes + (GetParam().take_is_done ? 1 : 0);
  EXPECT_EQ(ring.head(), taken);
  const bool closed = ring.is_closed();
  if (!closed && put - taken < kBound) {
    EXPECT_EQ(put_number(ring, put, in_good_time()), put);
  }
  for (std::uint64_t i = taken; i < ring.tail(); ++i) ASSERT_EQ(take_number(ring, in_good_time()), i);
  if (closed) {
    EXPECT_EQ(error_of([&] { take_number(ring); }), ErrorCode::closed);
    return;
  }
  EXPECT_EQ(take_number(ring, kNow), std::nullopt);
  expect_to_work(ring);
  RingWatcher(ring).trim();
  EXPECT_LE(RingWatcher(ring).committed(), (RingChunks::kKeep + 1) * kChunkBytes);
}

INSTANTIATE_TEST_SUITE_P(, DeathIn, ::testing::ValuesIn(kRingPoints), [](const auto& point) {
  std::string name = point.param.name;
  for (char& c : name)
    if (c == '.') c = '_';
  return name;
});

/// Its chunk is given back before another producer has moved the tail on.
TEST(Ring, WhatADeadProducerPutLastIsCountedThoughItsChunkIsGivenBack) {
  constexpr std::uint64_t kItems = (RingChunks::kKeep + 2) * kItemsPerChunk;
  static std::uint64_t commits = 0;
  Ring ring(RingOptions{});
  testing::Child victim([&] {
    point_hook.store([](const char* name) noexcept {
      if (std::string_view(name) == "ring.put.committed" && ++commits == kItems) ::raise(SIGKILL);
    });
    for (std::uint64_t i = 0;; ++i) put_number(ring, i);
  });
  ASSERT_EQ(victim.join(), -SIGKILL);
  for (std::uint64_t i = 0; i < kItems; ++i) ASSERT_EQ(take_number(ring, in_good_time()), i);
  RingWatcher(ring).trim();
  EXPECT_EQ(ring.tail(), kItems);
  expect_to_work(ring);
}

std::set<std::string>* seen = nullptr;
void note(const char* name) noexcept { seen->insert(name); }

TEST(RingPoints, AreAllListed) {
  Ring ring(RingOptions{.max_items = kBound});
  ring.set_wait_mode(Ring::WaitMode::block);
  Diary diary{};
  std::set<std::string> names;
  seen = &names;
  point_hook.store(note);
  live_a_whole_life(ring, diary);
  point_hook.store(nullptr);
  std::set<std::string> listed;
  for (const RingPoint& point : kRingPoints) listed.insert(point.name);
  EXPECT_EQ(names, listed);
}

}  // namespace
}  // namespace onecopy
