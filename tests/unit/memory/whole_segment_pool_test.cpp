// SPDX-License-Identifier: Apache-2.0
// Pools of devices whose physical memory comes and goes with whole segments.
#include <gtest/gtest.h>

#include <set>

#include "memory/pool.h"
#include "onecopy/core/error.h"

namespace onecopy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;

struct WholeSegmentPool : ::testing::Test {
  void SetUp() override {
    if (backend(DeviceType::cuda).devices().empty()) GTEST_SKIP() << "no such device on this machine";
  }
  SegmentTable segments;
  Pool pool{backend(DeviceType::cuda), 0, SegmentKind::cuda_vmm, "00", segments};
};

TEST_F(WholeSegmentPool, SmallExtentsShareOneUnitOfMemory) {
  const std::uint64_t unit = backend(DeviceType::cuda).granularity();
  for (int i = 0; i < 1000; ++i) pool.allocate(100);
  for (int i = 0; i < 10; ++i) pool.allocate(40 * kKiB);
  EXPECT_EQ(pool.stats().segments, 1u);
  EXPECT_EQ(pool.stats().committed_bytes, unit);
}

TEST_F(WholeSegmentPool, ExtentsAreAlignedAsTheVendorAlignsThem) {
  for (const std::uint64_t bytes : {1, 60, 100, 300, 600, 700, 900, 1000, 3000, 33'000, 3'000'000}) {
    const Extent extent = pool.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(extent.data) % 256, 0u) << bytes;
    EXPECT_GE(extent.size, bytes);
  }
  std::set<std::byte*> places;
  for (int i = 0; i < 500; ++i) {
    const Extent extent = pool.allocate(700);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(extent.data) % 256, 0u);
    EXPECT_TRUE(places.insert(extent.data).second);
  }
}

TEST_F(WholeSegmentPool, CommitsLittleMoreThanIsInUse) {
  std::uint64_t used = 0;
  for (int i = 0; i < 300; ++i) used += pool.allocate(700 * kKiB).size;
  EXPECT_LE(pool.stats().committed_bytes, used + used / 2);
  EXPECT_LE(pool.stats().segments, 40u);
}

TEST_F(WholeSegmentPool, LargeExtentsAreSegmentsOfTheirOwnInWholeUnits) {
  const std::uint64_t unit = backend(DeviceType::cuda).granularity();
  const Extent extent = pool.allocate(33 * kMiB + 1);
  EXPECT_EQ(extent.size, (33 * kMiB + unit) / unit * unit);
  EXPECT_EQ(pool.stats().committed_bytes, extent.size);
}

TEST_F(WholeSegmentPool, ASegmentIsGivenBackOnceNothingOfItIsInUse) {
  const Extent large = pool.allocate(20 * kMiB);
  const Extent other = pool.allocate(20 * kMiB);
  const Extent own = pool.allocate(40 * kMiB);
  const auto before = Clock::now();
  pool.free(large);
  pool.free(own);
  EXPECT_TRUE(pool.trim(before).waiting);
  EXPECT_FALSE(pool.trim(Clock::now() + 3 * Pool::kDecay).waiting);
  EXPECT_EQ(pool.stats().committed_bytes, other.size);
  pool.free(other);
  pool.trim_all();
  EXPECT_EQ(pool.stats().committed_bytes, 0u);
  EXPECT_TRUE(segments.list().empty());
}

TEST_F(WholeSegmentPool, FreedMemoryIsUsedAgainFirst) {
  const Extent first = pool.allocate(20 * kMiB);
  pool.free(first);
  EXPECT_EQ(pool.allocate(20 * kMiB).data, first.data);
}

TEST_F(WholeSegmentPool, AFullDeviceIsRefusedWithTheNumbers) {
  const std::uint64_t total = backend(DeviceType::cuda).devices().at(0).total_bytes;
  const Extent extent = pool.allocate(kMiB);
  const PoolStats before = pool.stats();
  try {
    pool.allocate(total + kMiB);
    FAIL() << "more than the device has";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_EQ(error.domain(), ErrorDomain::cuda);
    EXPECT_EQ(error.vendor_code(), 2);
    EXPECT_NE(std::string(error.what()).find(std::to_string(total)), std::string::npos) << error.what();
  }
  EXPECT_EQ(pool.stats().committed_bytes, before.committed_bytes);
  pool.free(extent);
}

TEST_F(WholeSegmentPool, WhatLiesFreeMakesRoomForWhatDoesNotFitBesideIt) {
  const std::uint64_t total = backend(DeviceType::cuda).devices().at(0).total_bytes;
  pool.free(pool.allocate(total / 2));
  pool.free(pool.allocate(20 * kMiB));
  EXPECT_GE(pool.allocate(total / 10 * 8).size, total / 10 * 8);  // a real one keeps some for itself
}

}  // namespace
}  // namespace onecopy
