// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "channel/ring/ring.h"
#include "os/memfd.h"
#include "unit/channel/ring/ring_testing.h"

namespace onecopy {
namespace {

/// A ring with a few items, and a process that can write over any word of it.
class DamagedRing : public ::testing::Test {
 protected:
  DamagedRing() {
    for (std::uint64_t i = 0; i < 5; ++i) put_number(ring_, i);
    take_number(ring_);
  }

  RingHeader& header() { return *memory_.as<RingHeader>(); }
  template <class T>
  T& at(std::size_t offset) {
    return *memory_.as<T>(offset);
  }
  RingGeometry geometry() { return RingGeometry(header().max_chunks); }
  RingSlot& slot(std::uint64_t i) { return memory_.as<RingSlot>(geometry().chunk(0))[i]; }

  void expect_take_refused(Deadline deadline = kForever) {
    EXPECT_EQ(error_of([&] { take_number(ring_, deadline); }), ErrorCode::protocol);
  }
  void expect_put_refused() {
    EXPECT_EQ(error_of([&] { put_number(ring_, 1); }), ErrorCode::protocol);
  }

  Ring ring_{RingOptions{.max_items = 100, .range = 16 * kChunkBytes}};
  Mapping memory_ = Mapping::of(ring_.fd(), file_size(ring_.fd()), Access::read_write);
};

TEST_F(DamagedRing, SaysSoWhenTheTailIsWrong) {
  for (const std::uint64_t tail :
       {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    header().producers.tail.store(tail);
    expect_put_refused();
  }
}

TEST_F(DamagedRing, SaysSoWhenTailAndIntentAreWrongTogether) {
  for (const std::uint64_t tail : {std::uint64_t{1} << 40, ~std::uint64_t{0} - 1}) {
    header().producers.tail.store(tail);
    header().producers.intent.store(tail);
    expect_put_refused();
  }
}

TEST_F(DamagedRing, SaysSoWhenTheHeadIsWrong) {
  for (const std::uint64_t head : {std::uint64_t{7}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    header().consumers.head.store(head);
    expect_take_refused();
    expect_take_refused(kNow);
  }
}

TEST_F(DamagedRing, RefusesPutsWhenTheHeadIsBeyondTheTail) {
  header().consumers.head.store(1000);
  for (int i = 0; i < 94; ++i) put_number(ring_, 1, kNow);
  Ring same(ring_.fd().duplicate());
  EXPECT_EQ(error_of([&] {
              for (std::uint64_t i = 0; i < 2 * kItemsPerChunk; ++i) put_number(same, 1, kNow);
            }),
            ErrorCode::protocol);
}

TEST_F(DamagedRing, SaysSoWhenAStampIsWrong) {
  slot(1).stamp.store(77);
  expect_take_refused();
}

TEST_F(DamagedRing, SaysSoWhenALengthIsWrong) {
  slot(1).size = kMaxItemBytes + 1;
  expect_take_refused();
}

TEST_F(DamagedRing, SaysSoWhenAChunkNumberIsWrong) {
  for (const std::uint32_t chunk : {16U, ~0U}) {
    at<std::uint32_t>(geometry().directory()) = chunk;
    expect_take_refused();
    expect_put_refused();
  }
}

TEST_F(DamagedRing, SaysSoWhenTheOwnerOfAChunkIsWrong) {
  at<std::uint64_t>(geometry().owners()) = 12345;
  expect_take_refused();
}

TEST_F(DamagedRing, SaysSoWhenTheCountOfChunksIsWrong) {
  header().chunks.store(~0U);
  const auto fill = [&] {
    for (std::uint64_t i = 0; i < 2 * kItemsPerChunk; ++i) {
      put_number(ring_, i);
      take_number(ring_);
    }
  };
  at<std::uint64_t>(geometry().owners()) = 1;
  for (std::uint32_t p = 1; p < 16; ++p) at<std::uint64_t>(geometry().owners() + 8 * p) = 99;
  header().consumers.head.store(0);
  EXPECT_EQ(error_of(fill), ErrorCode::protocol);
}

TEST_F(DamagedRing, SaysSoWhenALockIsWrong) {
  std::memset(static_cast<void*>(&header().producers.mutex), 0x5a, sizeof(RobustMutex));
  expect_put_refused();
}

TEST_F(DamagedRing, GoesOnWhereALockNamesAHolderThatDoesNotExist) {
  const std::uint32_t nobody = 0x3fff'fff0;
  std::memcpy(static_cast<void*>(&header().producers.mutex), &nobody, sizeof nobody);
  std::memcpy(static_cast<void*>(&header().consumers.mutex), &nobody, sizeof nobody);
  EXPECT_TRUE(put_number(ring_, 1, in_good_time()));
  EXPECT_TRUE(take_number(ring_, in_good_time()));
}

TEST_F(DamagedRing, TellsSleepersToo) {
  while (ring_.size() > 0) take_number(ring_);
  std::thread sleeper([&] { expect_take_refused(); });
  while ((header().items.word.load() & 1) == 0) std::this_thread::yield();
  header().producers.tail.store(50);
  sleeper.join();
}

TEST_F(DamagedRing, IsRefusedByWhoAttaches) {
  const auto attach = [&] { Ring again(ring_.fd().duplicate()); };
  EXPECT_EQ(error_of(attach), std::nullopt);
  header().pid_namespace ^= 1;
  EXPECT_EQ(error_of(attach), ErrorCode::unsupported);
  header().pid_namespace ^= 1;
  header().max_chunks = 8;
  EXPECT_EQ(error_of(attach), ErrorCode::protocol);
  header().max_chunks = 16;
  header().version = kRingVersion + 1;
  EXPECT_EQ(error_of(attach), ErrorCode::protocol);
  header().magic = 0;
  EXPECT_EQ(error_of(attach), ErrorCode::protocol);
}

TEST(RingAttach, RefusesOtherFiles) {
  EXPECT_EQ(error_of([] { Ring ring(create_memfd("small", 4096)); }), ErrorCode::protocol);
  EXPECT_EQ(error_of([] { Ring ring(create_memfd("zeros", RingGeometry(8).size())); }),
            ErrorCode::protocol);
}

}  // namespace
}  // namespace onecopy
