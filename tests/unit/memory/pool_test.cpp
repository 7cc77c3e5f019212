// SPDX-License-Identifier: Apache-2.0
#include "memory/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "onecopy/core/error.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using onecopy::testing::expect_refusal;

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;

struct PoolTest : ::testing::Test {
  std::vector<std::uint32_t> retired;
  SegmentTable segments;
  Pool pool{backend(DeviceType::cpu), 0, SegmentKind::memfd, "0123456789abcdef0123456789abcdef", segments};
};

/// Physical memory of all segments, as the kernel counts it.
std::uint64_t resident_bytes(const SegmentTable& segments) {
  std::uint64_t total = 0;
  for (const SegmentInfo& info : segments.list()) total += info.committed;
  return total;
}

TEST_F(PoolTest, ExtentsAreLargeEnoughAlignedAndApart) {
  std::map<std::byte*, std::uint64_t> live;
  for (std::uint64_t bytes = 0; bytes < 200 * kKiB; bytes += 1 + bytes / 7) {
    const Extent extent = pool.allocate(bytes);
    ASSERT_GE(extent.size, std::max<std::uint64_t>(bytes, 64));
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(extent.data) % 64, 0u);
    if (bytes > 32 * kKiB) {
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(extent.data) % 4096, 0u);
    }
    std::memset(extent.data, 1, extent.size);
    live[extent.data] = extent.size;
  }
  std::byte* end = nullptr;
  for (const auto& [data, size] : live) {
    EXPECT_GE(data, end);
    end = data + size;
  }
}

TEST_F(PoolTest, RoundingWastesAtMostAFifthAbove512Bytes) {
  for (std::uint64_t bytes = 513; bytes < 8 * kMiB; bytes += bytes / 5) {
    const Extent extent = pool.allocate(bytes);
    EXPECT_LE(extent.size * 4, bytes * 5 + 3) << bytes;
    pool.free(extent);
  }
}

TEST_F(PoolTest, ExtentsAreWhereTheirSegmentSaysTheyAre) {
  for (const std::uint64_t bytes : {std::uint64_t{100}, 100 * kKiB, 40 * kMiB}) {
    const Extent extent = pool.allocate(bytes);
    std::memset(extent.data, 5, 8);
    const auto other =
        backend(DeviceType::cpu)
            .open(0, segments.export_memory(extent.segment, Access::read_only), Access::read_only);
    EXPECT_EQ(other->data()[extent.offset], std::byte{5});
    EXPECT_EQ(segments.info(extent.segment).kind, SegmentKind::memfd);
    EXPECT_LE(extent.offset + extent.size, segments.info(extent.segment).size);
  }
}

TEST_F(PoolTest, LargeExtentsHaveSegmentsOfTheirOwn) {
  const Extent a = pool.allocate(32 * kMiB);
  const Extent b = pool.allocate(33 * kMiB + 1);
  EXPECT_NE(a.segment, b.segment);
  EXPECT_EQ(a.offset, 0u);
  EXPECT_EQ(segments.info(a.segment).size, 32 * kMiB);
  EXPECT_EQ(segments.info(b.segment).size, 33 * kMiB + 4096);
}

TEST_F(PoolTest, AFreedExtentIsReusedAtOnce) {
  for (const std::uint64_t bytes : {std::uint64_t{64}, 3 * kKiB, kMiB, 16 * kMiB, 64 * kMiB}) {
    const Extent first = pool.allocate(bytes);
    pool.free(first);
    const std::uint64_t committed = pool.stats().committed_bytes;
    const Extent second = pool.allocate(bytes);
    EXPECT_EQ(second.data, first.data) << bytes;
    EXPECT_EQ(pool.stats().committed_bytes, committed);
    pool.free(second);
  }
}

TEST_F(PoolTest, AWarmSegmentIsNotReusedForSomethingMuchSmaller) {
  const Extent large = pool.allocate(64 * kMiB);
  pool.free(large);
  const Extent close = pool.allocate(60 * kMiB);
  EXPECT_EQ(close.segment, large.segment);
  pool.free(close);
  EXPECT_NE(pool.allocate(40 * kMiB).segment, large.segment);
}

TEST_F(PoolTest, ReturnsLargeFreedBlocksToTheSystem) {
  segments.on_retire = [&](std::uint32_t number) { retired.push_back(number); };
  const Extent own = pool.allocate(48 * kMiB);
  const Extent shared = pool.allocate(16 * kMiB);
  const Extent small = pool.allocate(100);
  const auto before = Clock::now();
  EXPECT_EQ(segments.info(own.segment).number, own.segment);
  pool.free(own);
  pool.free(shared);
  EXPECT_TRUE(pool.trim(before).waiting);
  EXPECT_GE(resident_bytes(segments), 64 * kMiB);
  EXPECT_GE(pool.stats().warm_bytes, 64 * kMiB);

  EXPECT_FALSE(pool.trim(Clock::now() + 2 * Pool::kDecay).waiting);
  EXPECT_LT(resident_bytes(segments), kMiB);
  EXPECT_LT(pool.stats().committed_bytes, kMiB);
  EXPECT_EQ(retired, std::vector<std::uint32_t>{own.segment});
  EXPECT_THROW(segments.info(own.segment), Error);
  EXPECT_EQ(segments.info(small.segment).number, small.segment);
}

TEST_F(PoolTest, ReturnsAsMuchAtOnceAsItIsAskedTo) {
  const Extent own = pool.allocate(48 * kMiB);
  const Extent shared = pool.allocate(16 * kMiB);
  const Extent kept = pool.allocate(100);
  pool.free(own);
  pool.free(shared);
  const auto later = Clock::now() + 2 * Pool::kDecay;
  const std::uint64_t all = resident_bytes(segments);
  std::uint64_t given_back = 0;
  for (bool waiting = true; waiting;) {
    const Pool::TrimResult trimmed = pool.trim(later, 8 * kMiB);
    EXPECT_GT(trimmed.bytes, 0u);
    EXPECT_LE(trimmed.bytes, 8 * kMiB);
    given_back += trimmed.bytes;
    EXPECT_EQ(all - resident_bytes(segments), given_back);
    waiting = trimmed.waiting;
  }
  EXPECT_GE(given_back, 64 * kMiB);
  EXPECT_EQ(pool.trim(later, 8 * kMiB).bytes, 0u);
  EXPECT_EQ(segments.info(kept.segment).number, kept.segment);
}

TEST_F(PoolTest, GivesEverythingBackWhenNothingIsInUse) {
  std::vector<Extent> extents;
  for (std::uint64_t bytes = 64; bytes < 64 * kMiB; bytes += bytes / 2)
    extents.push_back(pool.allocate(bytes));
  for (const Extent& extent : extents) pool.free(extent);
  pool.trim_all();
  const PoolStats stats = pool.stats();
  EXPECT_EQ(stats.live_blocks, 0u);
  EXPECT_EQ(stats.live_bytes, 0u);
  EXPECT_EQ(stats.committed_bytes, 0u);
  EXPECT_EQ(stats.warm_bytes, 0u);
  EXPECT_EQ(stats.segments, 0u);
  EXPECT_TRUE(segments.list().empty());
  EXPECT_NE(pool.allocate(1).data, nullptr);
}

TEST_F(PoolTest, TrimSaysWhetherSomethingIsWaiting) {
  const auto now = Clock::now();
  EXPECT_FALSE(pool.trim(now).waiting);
  const Extent extent = pool.allocate(kMiB);
  pool.free(extent);
  EXPECT_TRUE(pool.trim(now).waiting);
  EXPECT_TRUE(pool.trim(now + Pool::kDecay / 2).waiting);
  EXPECT_FALSE(pool.trim(Clock::now() + 3 * Pool::kDecay).waiting);
}

TEST_F(PoolTest, AnEmptySlabGoesBackAfterItsDecay) {
  const Extent extent = pool.allocate(64);
  pool.free(extent);
  const auto now = Clock::now();
  EXPECT_TRUE(pool.trim(now + 2 * Pool::kDecay).waiting);
  pool.trim(now + 4 * Pool::kDecay);
  EXPECT_EQ(pool.stats().committed_bytes, 0u);
}

TEST_F(PoolTest, CountsWhatIsInUse) {
  const Extent a = pool.allocate(1000);
  const Extent b = pool.allocate(kMiB);
  PoolStats stats = pool.stats();
  EXPECT_EQ(stats.live_blocks, 2u);
  EXPECT_EQ(stats.live_bytes, a.size + b.size);
  EXPECT_EQ(stats.allocations, 2u);
  EXPECT_EQ(stats.segments, 1u);
  EXPECT_GE(stats.committed_bytes, stats.live_bytes);
  EXPECT_EQ(stats.peak_committed_bytes, stats.committed_bytes);
  EXPECT_EQ(stats.committed_bytes, resident_bytes(segments));
  pool.free(a);
  pool.free(b);
  stats = pool.stats();
  EXPECT_EQ(stats.live_blocks, 0u);
  EXPECT_EQ(stats.live_bytes, 0u);
  EXPECT_EQ(stats.allocations, 2u);
}

TEST_F(PoolTest, FreeingWhatIsNotInUseIsIgnored) {
  const Extent small = pool.allocate(64);
  const Extent page = pool.allocate(kMiB);
  const Extent own = pool.allocate(40 * kMiB);
  for (const Extent& extent : {small, page, own}) {
    pool.free(extent);
    pool.free(extent);
    pool.free({extent.segment, extent.offset + 8, 0, nullptr});
    pool.free({extent.segment, ~std::uint64_t{0}, 0, nullptr});
  }
  pool.free({12345, 0, 0, nullptr});
  EXPECT_EQ(pool.stats().live_blocks, 0u);
  const Extent a = pool.allocate(64);
  const Extent b = pool.allocate(64);
  EXPECT_NE(a.data, b.data);
}

TEST_F(PoolTest, TooLargeARequestIsRefusedWithTheNumbersAndChangesNothing) {
  const Extent extent = pool.allocate(kMiB);
  const PoolStats before = pool.stats();
  for (const std::uint64_t bytes : {std::uint64_t{1} << 43, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    try {
      pool.allocate(bytes);
      FAIL() << bytes;
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::out_of_memory || error.code() == ErrorCode::out_of_mappings)
          << error.what();
      EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos) << error.what();
    }
  }
  const PoolStats after = pool.stats();
  EXPECT_EQ(after.live_blocks, before.live_blocks);
  EXPECT_EQ(after.committed_bytes, before.committed_bytes);
  EXPECT_EQ(after.segments, before.segments);
  EXPECT_EQ(extent.data[0], std::byte{0});
}

TEST_F(PoolTest, MoreThanAProcessCanAddressIsRefusedInOneSentence) {
  const std::string text = expect_refusal(ErrorCode::out_of_memory,
                                          {"cannot allocate 1125899906842624 bytes", "can address at most"},
                                          [&] { pool.allocate(std::uint64_t{1} << 50); });
  EXPECT_EQ(std::count(text.begin(), text.end(), ':'), 1) << text;
}

TEST_F(PoolTest, ManySmallExtentsNeedFewMappings) {
  constexpr std::size_t kCount = 200'000;
  std::set<std::uint32_t> used;
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i < kCount; ++i) used.insert(pool.allocate(64 + random() % 961).segment);
  EXPECT_LE(used.size(), 3u);
  EXPECT_EQ(pool.stats().live_blocks, kCount);
}

/// Sizes as they come: most are small, most bytes are in large ones.
std::uint64_t random_size(std::mt19937_64& random, double largest) {
  return static_cast<std::uint64_t>(
      std::exp2(std::uniform_real_distribution<double>(6, std::log2(largest))(random)));
}

/// Allocates and frees at random around `target` bytes in use; returns committed / asked-for at the
/// moment when most was committed.
double churn(Pool& pool, double largest, std::uint64_t target, int steps, bool trimming) {
  std::mt19937_64 random(42);
  std::vector<std::pair<Extent, std::uint64_t>> live;
  std::uint64_t asked = 0;
  std::uint64_t most = 0;
  double ratio = 0;
  for (int step = 0; step < steps; ++step) {
    // The load comes in waves, so that the heap shrinks and is filled differently.
    const std::uint64_t goal = (step / 2000) % 2 == 0 ? target : target / 2;
    while (asked > goal || (!live.empty() && random() % 3 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      pool.free(live.back().first);
      asked -= live.back().second;
      live.pop_back();
    }
    const std::uint64_t bytes = random_size(random, largest);
    live.emplace_back(pool.allocate(bytes), bytes);
    asked += bytes;
    if (trimming && step % 100 == 0) pool.trim(Clock::now() + step * 5ms);
    if (const std::uint64_t committed = pool.stats().committed_bytes; committed > most) {
      most = committed;
      ratio = static_cast<double>(committed) / static_cast<double>(asked);
    }
  }
  for (const auto& [extent, bytes] : live) pool.free(extent);
  return ratio;
}

TEST_F(PoolTest, FragmentationStaysBounded) {
  EXPECT_LT(churn(pool, 4e6, 300 * kMiB, 20'000, false), 1.5);
  EXPECT_EQ(pool.stats().live_bytes, 0u);
}

TEST_F(PoolTest, FragmentationStaysBoundedWhileTrimming) {
  EXPECT_LT(churn(pool, 1e6, 64 * kMiB, 5'000, true), 1.5);
}

TEST_F(PoolTest, FragmentationOfSmallExtentsStaysBounded) {
  EXPECT_LT(churn(pool, 32e3, 64 * kMiB, 60'000, false), 1.5);
}

TEST_F(PoolTest, WarmMemoryIsGivenBackBeforeMuchMoreIsReserved) {
  for (std::uint64_t bytes = 32 * kMiB; bytes < 150 * kMiB; bytes += bytes / 4) {
    pool.free(pool.allocate(bytes));
    const PoolStats stats = pool.stats();
    ASSERT_LE(stats.committed_bytes, bytes + bytes / 2 + 65 * kMiB);
  }
}

TEST_F(PoolTest, ThreadsShareItWithoutMixingUpExtents) {
  std::vector<std::thread> threads;
  for (unsigned id = 1; id <= 4; ++id)
    threads.emplace_back([&, id] {
      std::mt19937_64 random(id);
      std::vector<Extent> mine;
      for (int step = 0; step < 3000; ++step) {
        if (mine.size() < 50 || random() % 2 == 0) {
          const Extent extent = pool.allocate(random_size(random, 300e3));
          std::memset(extent.data, static_cast<int>(id), extent.size);
          mine.push_back(extent);
        } else {
          std::swap(mine[random() % mine.size()], mine.back());
          const Extent extent = mine.back();
          mine.pop_back();
          ASSERT_EQ(extent.data[0], std::byte(id));
          ASSERT_EQ(extent.data[extent.size - 1], std::byte(id));
          pool.free(extent);
        }
        if (step % 200 == 0) pool.trim_all();
      }
      for (const Extent& extent : mine) pool.free(extent);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.stats().live_bytes, 0u);
  pool.trim_all();
  EXPECT_EQ(pool.stats().committed_bytes, 0u);
}

TEST(PoolLifetime, ADestroyedPoolsSegmentsLeaveTheTable) {
  SegmentTable segments;
  std::size_t retired = 0;
  segments.on_retire = [&](std::uint32_t) { ++retired; };
  {
    Pool pool(backend(DeviceType::cpu), 0, SegmentKind::memfd, "00", segments);
    pool.free(pool.allocate(100));
    pool.allocate(40 * kMiB);
  }
  EXPECT_TRUE(segments.list().empty());
  EXPECT_EQ(retired, 2u);
}

TEST(PoolLifetime, AnAbandonedPoolLeavesItsMemoryAlone) {
  std::byte* data = nullptr;
  ExportedMemory exported;
  {
    SegmentTable segments;
    Pool pool(backend(DeviceType::cpu), 0, SegmentKind::memfd, "00", segments);
    const Extent extent = pool.allocate(40 * kMiB);
    data = extent.data;
    data[0] = std::byte{17};
    pool.lock();
    segments.lock();
    segments.unlock();
    pool.unlock();
    pool.abandon();
    segments.abandon();
    exported = segments.export_memory(extent.segment, Access::read_write);
  }
  EXPECT_EQ(data[0], std::byte{17});
  const auto memory = backend(DeviceType::cpu).open(0, std::move(exported), Access::read_write);
  EXPECT_EQ(memory->data()[0], std::byte{17});
}

TEST(SegmentTableNumbers, AreNeverReused) {
  SegmentTable segments;
  EXPECT_EQ(segments.next_number(), 1u);
  EXPECT_EQ(segments.next_number(), 2u);
  const std::uint32_t number = segments.next_number();
  segments.add(number, kCpu, backend(DeviceType::cpu).create(0, 4096, SegmentKind::memfd, "00", number));
  segments.remove(number);
  segments.remove(number);
  EXPECT_EQ(segments.next_number(), 4u);
  EXPECT_THROW(segments.export_memory(number, Access::read_write), Error);
}

/// A driver pins whole units, and refuses a copy over the edge of one (seen on an H100).
TEST_F(PoolTest, NoExtentOfASharedSegmentReachesOverAUnitThatIsPinnedAsOne) {
  constexpr std::uint64_t kUnit = 64 * kMiB;
  std::mt19937 random(7);
  std::vector<Extent> kept;
  for (int i = 0; i < 60; ++i) {
    const Extent extent = pool.allocate(1 + random() % (31 * kMiB));
    EXPECT_EQ(extent.offset / kUnit, (extent.offset + extent.size - 1) / kUnit) << extent.size;
    if (random() % 3 == 0) pool.free(extent);
    else kept.push_back(extent);
  }
  for (const Extent& extent : kept) pool.free(extent);
}

struct Guard final : PageGuard {
  bool begin_hole(std::uint32_t) noexcept override {
    ++asked;
    open += !is_pinned;
    return !is_pinned;
  }
  void end_hole(std::uint32_t) noexcept override { --open; }
  bool is_pinned = true;
  int asked = 0;
  int open = 0;
};

TEST_F(PoolTest, WhatItsGuardKeepsStaysReservedAndIsUsedAgain) {
  Guard guard;
  segments.guard = &guard;
  const Extent kept = pool.allocate(kMiB);
  const Extent freed = pool.allocate(16 * kMiB);
  pool.free(freed);
  const std::uint64_t before = pool.stats().committed_bytes;
  EXPECT_EQ(pool.trim_all(), 0u);
  EXPECT_GT(guard.asked, 0);
  EXPECT_EQ(pool.stats().committed_bytes, before);
  EXPECT_FALSE(pool.trim(Clock::now() + 10s).waiting) << "nobody need call again before something changes";
  const Extent again = pool.allocate(16 * kMiB);
  EXPECT_EQ(again.data, freed.data);
  pool.free(again);
  guard.is_pinned = false;
  pool.look_again();
  EXPECT_GE(pool.trim(Clock::now() + 20s).bytes, 16 * kMiB);
  EXPECT_EQ(guard.open, 0);
  pool.free(kept);
  segments.guard = nullptr;
}

}  // namespace
}  // namespace onecopy
