// SPDX-License-Identifier: Apache-2.0
#include "channel/codec/segment_directory.h"

#include <gtest/gtest.h>

#include "support/refusal.h"
#include "unit/channel/ring/ring_testing.h"

namespace onecopy {
namespace {

using testing::expect_refusal;

SegmentOrigin segment(std::uint32_t number) {
  SegmentOrigin ref;
  ref.owner[0] = 1;
  ref.maker[0] = 2;
  ref.segment = number;
  ref.segment_size = 4096;
  return ref;
}

class SegmentDirectoryTest : public ::testing::Test {
 protected:
  SegmentDirectoryTest() { directory_.describe(77, false); }

  std::optional<std::uint16_t> append(std::uint32_t number) {
    std::optional<std::uint16_t> index;
    ring_.exclusively(kForever, [&] { index = directory_.append(segment(number), Access::read_only); });
    return index;
  }
  void fill_half() {
    for (std::uint32_t i = 0; i < SegmentDirectory::kHalf; ++i) ASSERT_TRUE(append(++last_));
  }

  Ring ring_{RingOptions{}};
  SegmentDirectory directory_{ring_};
  std::uint32_t last_ = 0;
};

TEST_F(SegmentDirectoryTest, SaysOfAQueueWhatItsCreatorHasSaid) {
  EXPECT_EQ(directory_.queue(), 77U);
  EXPECT_FALSE(directory_.sleeps());
  directory_.describe(78, true);
  EXPECT_EQ(SegmentDirectory(ring_).queue(), 78U);
  EXPECT_TRUE(SegmentDirectory(ring_).sleeps());
}

TEST_F(SegmentDirectoryTest, GivesBackWhatWasEntered) {
  ASSERT_EQ(append(5), 0);
  ASSERT_EQ(append(6), 1);
  const SegmentDirectory::Entry entry = directory_.read(1);
  EXPECT_EQ(entry.segment.segment, 6U);
  EXPECT_EQ(entry.segment.owner, segment(6).owner);
  EXPECT_EQ(entry.segment.maker, segment(6).maker);
  EXPECT_EQ(entry.segment.segment_size, 4096U);
  EXPECT_EQ(entry.access, Access::read_only);
  EXPECT_EQ(entry.epoch, 0U);
}

TEST_F(SegmentDirectoryTest, RefusesAnIndexThatNobodyHasEntered) {
  append(5);
  expect_refusal(ErrorCode::bad_handle, {"entry 1"}, [&] { directory_.read(1); });
  expect_refusal(ErrorCode::bad_handle, {"entry 32768"}, [&] { directory_.read(32'768); });
  expect_refusal(ErrorCode::bad_handle, {"entry 32767"}, [&] { directory_.read(32'767); });
}

TEST_F(SegmentDirectoryTest, BeginsTheOtherHalfWhenOneIsFull) {
  fill_half();
  EXPECT_EQ(directory_.epoch(), 0U);
  EXPECT_EQ(append(100'000), 32'768);
  EXPECT_EQ(directory_.epoch(), 1U);
  EXPECT_EQ(directory_.read(0).segment.segment, 1U);
  EXPECT_EQ(directory_.read(32'766).segment.segment, SegmentDirectory::kHalf);
  EXPECT_EQ(directory_.epoch_of(0), 0U);
  EXPECT_EQ(directory_.read(32'768).epoch, 1U);
}

TEST_F(SegmentDirectoryTest, UsesAHalfAgainWhenAllItemsOfItsTimeAreTaken) {
  put_number(ring_, 1);
  fill_half();
  fill_half();
  EXPECT_EQ(directory_.epoch(), 1U);
  EXPECT_FALSE(directory_.has_room());
  EXPECT_EQ(append(100'000), std::nullopt);
  put_number(ring_, 2);  // of the epoch now, and so in no putter's way
  take_number(ring_);
  EXPECT_TRUE(directory_.has_room());
  EXPECT_EQ(append(100'001), 0);
  EXPECT_EQ(directory_.epoch(), 2U);
  EXPECT_EQ(directory_.read(0).segment.segment, 100'001U);
  EXPECT_EQ(directory_.epoch_of(32'768), 1U);
  EXPECT_EQ(directory_.read(32'768).segment.segment, SegmentDirectory::kHalf + 1);
  expect_refusal(ErrorCode::bad_handle, {"entry 1"}, [&] { directory_.read(1); });
}

}  // namespace
}  // namespace onecopy
