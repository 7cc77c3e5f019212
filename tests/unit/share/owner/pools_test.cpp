// SPDX-License-Identifier: Apache-2.0
#include "share/owner/pools.h"

#include <gtest/gtest.h>

#include <span>
#include <string>

#include "os/random.h"
#include "share/format/process_name.h"

namespace onecopy {
namespace {

std::string random_name() {
  ProcessId id;
  random_bytes(std::as_writable_bytes(std::span(id)));
  return public_name(id);
}

class PoolsTest : public ::testing::Test {
 protected:
  ~PoolsTest() override { pools.end(SegmentKind::named_file); }
  Pool& anonymous() { return pools.of(SegmentKind::memfd, kCpu); }
  Pool& named() { return pools.of(SegmentKind::named_file, kCpu); }

  const std::string owner = random_name();
  SegmentTable segments;
  int idle = 0;  ///< times that memory began to lie idle
  Pools pools{owner, segments, [this] { ++idle; }};
};

TEST_F(PoolsTest, AreOneForEachKindAndKept) {
  Pool& first = anonymous();
  Pool& second = named();
  EXPECT_NE(&first, &second);
  EXPECT_EQ(&anonymous(), &first);
  EXPECT_EQ(&named(), &second);
}

TEST_F(PoolsTest, CountWhatIsInUseInAllOfThem) {
  const Extent here = anonymous().allocate(1000);
  const Extent there = named().allocate(5000);
  EXPECT_EQ(pools.live_bytes(), here.size + there.size);
  anonymous().free(here);
  EXPECT_EQ(pools.live_bytes(), there.size);
  named().free(there);
  EXPECT_EQ(pools.live_bytes(), 0u);
}

TEST_F(PoolsTest, SayWhenMemoryBeginsToLieIdleAndGiveItBack) {
  const Extent extent = anonymous().allocate(8 << 20);
  EXPECT_EQ(idle, 0);
  anonymous().free(extent);
  EXPECT_GT(idle, 0);
  EXPECT_TRUE(pools.trim().waiting) << "it is kept warm for a while";
  EXPECT_GE(anonymous().stats().warm_bytes, 8u << 20);
  pools.trim_all();
  EXPECT_EQ(anonymous().stats().warm_bytes, 0u);
}

TEST_F(PoolsTest, OfOneKindEndAndLeaveTheOthersAlone) {
  const Extent kept = anonymous().allocate(1000);
  named().free(named().allocate(1000));
  EXPECT_EQ(named().stats().allocations, 1u);
  pools.end(SegmentKind::named_file);
  EXPECT_EQ(named().stats().allocations, 0u) << "of another pool, made anew";
  EXPECT_EQ(anonymous().stats().live_bytes, kept.size);
  anonymous().free(kept);
}

}  // namespace
}  // namespace onecopy
