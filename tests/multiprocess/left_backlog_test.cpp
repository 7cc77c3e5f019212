// SPDX-License-Identifier: Apache-2.0
// Items of a queue that all its users have left: they stay for receivers that come late, until memory is short.
#include <gtest/gtest.h>

#include <optional>

#include "onecopy/channel/queue.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "share/runtime/runtime.h"
#include "support/cuda_streams.h"

namespace onecopy {
namespace {

using testing::device_bytes;
using testing::eventually;
using testing::in_child_with;

constexpr std::int64_t kMostOfIt = 40 << 20;

/// The process has nothing of it but the item.
void put_and_leave() {
  Queue queue = Queue::create();
  queue.put(device_bytes(kMostOfIt));
}

std::string place_of_item() {
  const OwnerInfo info = Runtime::current().describe();
  return info.in_transit.empty() ? "" : info.in_transit.front().where;
}

TEST(LeftBacklog, IsListedAsSuchAndGivenUpWhenMemoryIsShort) {
  if (testing::cuda_devices() < 1 || !testing::is_simulated()) GTEST_SKIP() << "wants a small device";
  in_child_with({{"ONECOPY_SIM_CUDA_MEMORY", "67108864"}}, [] {
    put_and_leave();
    EXPECT_TRUE(eventually([] {
      return place_of_item().find("whose users have gone") != std::string::npos;
    })) << place_of_item();
    EXPECT_EQ(stats().live_blocks, 2u) << "the tensor, and the queue";
    EXPECT_NO_THROW(device_bytes(kMostOfIt));
    EXPECT_EQ(place_of_item(), "");
  });
}

TEST(LeftBacklog, OfAQueueThatIsInUseStaysAlsoWhenMemoryIsShort) {
  if (testing::cuda_devices() < 1 || !testing::is_simulated()) GTEST_SKIP() << "wants a small device";
  in_child_with({{"ONECOPY_SIM_CUDA_MEMORY", "67108864"}}, [] {
    Queue queue = Queue::create();
    queue.put(device_bytes(kMostOfIt));
    EXPECT_THROW(device_bytes(kMostOfIt), Error);
    EXPECT_EQ(queue.get_tensor().nbytes(), static_cast<std::size_t>(kMostOfIt));
  });
}

}  // namespace
}  // namespace onecopy
