// SPDX-License-Identifier: Apache-2.0
#include "share/broker/connection_stage.h"

#include <gtest/gtest.h>

#include "share/owner/claim_memory.h"

namespace onecopy {
namespace {

constexpr std::uint64_t kQueue = 77;

/// The items of a dead process with one block in a queue; its receivers need no time to read them.
class UndeliveredItemsTest : public ::testing::Test {
 protected:
  UndeliveredItemsTest() { transits_.begin(3, kQueue); }
  ~UndeliveredItemsTest() override { after_transit_ms = before_; }

  void open_queue(std::uint64_t number) {
    const auto progress = [this] { return std::optional(QueueProgress{put_, taken_}); };
    queues_.add(number, {progress, nullptr});
  }

  const int before_ = after_transit_ms.exchange(-1);
  const Mapping page_ = private_claims();
  TransitCounts transits_ = transits_in(page_);
  LocalQueues queues_;
  std::uint64_t put_ = 0;
  std::uint64_t taken_ = 0;
};

TEST_F(UndeliveredItemsTest, AreDeliveredOnceAllIsTakenThatWasPutBeforeItsDeath) {
  open_queue(kQueue);
  put_ = 2;
  UndeliveredItems items(transits_);
  items.set_blocks(1);
  EXPECT_EQ(items.blocks(), 1u);
  EXPECT_FALSE(items.are_delivered(queues_));
  put_ = 10;  // by others, later
  taken_ = 1;
  EXPECT_FALSE(items.are_delivered(queues_));
  taken_ = 2;
  EXPECT_TRUE(items.are_delivered(queues_));
}

TEST_F(UndeliveredItemsTest, AreNotWaitedForInAQueueThatIsOver) {
  open_queue(kQueue);
  put_ = 2;
  UndeliveredItems items(transits_);
  EXPECT_FALSE(items.are_delivered(queues_));
  queues_.remove(kQueue);
  EXPECT_FALSE(items.are_delivered(queues_)) << "another process may take them";
  queues_.remove(kQueue, true);
  EXPECT_TRUE(items.are_delivered(queues_));
  UndeliveredItems later(transits_);
  EXPECT_TRUE(later.are_delivered(queues_)) << "its process died after the queue was over";
}

TEST_F(UndeliveredItemsTest, WaitsForEachOfItsQueues) {
  open_queue(kQueue);
  transits_.begin(4, kQueue + 1);  // not open here: its progress is unknown
  UndeliveredItems items(transits_);
  EXPECT_FALSE(items.are_delivered(queues_));
  open_queue(kQueue + 1);
  EXPECT_TRUE(items.are_delivered(queues_));
}

TEST_F(UndeliveredItemsTest, GivesReceiversTheTimeToReadWhatTheyTook) {
  open_queue(kQueue);
  UndeliveredItems items(transits_);
  after_transit_ms = 1'000'000;
  EXPECT_FALSE(items.are_delivered(queues_));
  after_transit_ms = -1;
  EXPECT_TRUE(items.are_delivered(queues_));
}

TEST_F(UndeliveredItemsTest, WithMoreQueuesThanCanBeNotedWaitsForTimeAlone) {
  open_queue(kQueue);
  for (std::uint64_t queue = 1; queue <= TransitCounts::kQueues + 1; ++queue)
    transits_.begin(3, 1000 + queue);
  UndeliveredItems items(transits_);
  EXPECT_FALSE(items.are_delivered(queues_));
}

}  // namespace
}  // namespace onecopy
