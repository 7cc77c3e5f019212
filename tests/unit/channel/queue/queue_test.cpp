// SPDX-License-Identifier: Apache-2.0
// A queue within one process: its promises to threads.
#include "onecopy/channel/queue.h"

#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <initializer_list>
#include <thread>

#include "onecopy/core/error.h"
#include "onecopy/memory/dlpack.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/eventually.h"
#include "support/footprint.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::eventually;
using testing::expect_refusal;
using testing::expect_soon;
using testing::Footprint;
using testing::number;
using testing::number_in;
using testing::Watchdog;

Bytes bytes_of(std::string_view text) {
  const ByteSpan bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(Queue, GivesTheSameMemoryInTheSameProcess) {
  Queue queue = Queue::create();
  const Tensor tensor = number(7);
  queue.put(tensor);
  const Tensor got = queue.get_tensor();
  EXPECT_EQ(got.data(), tensor.data());
  EXPECT_EQ(got.layout(), tensor.layout());
}

TEST(Queue, ThatWasMovedFromThrows) {
  Queue queue = Queue::create();
  Queue other = std::move(queue);
  other.put(number(1));
  for (const std::function<void()>& use : std::initializer_list<std::function<void()>>{
           [&] { queue.put(number(1)); }, [&] { queue.get(); }, [&] { queue.try_get(); },
           [&] { queue.size(); }, [&] { queue.empty(); }, [&] { queue.maxsize(); }, [&] { queue.handle(); },
           [&] { queue.ready_fd(); }, [&] { queue.close(); }, [&] { queue.is_closed(); },
           [&] { queue.wait_for_space(); }})
    expect_refusal(ErrorCode::closed, {"moved from"}, use);
  EXPECT_EQ(other.size(), 1u);
  queue = std::move(other);
  EXPECT_EQ(queue.size(), 1u);
}

TEST(Queue, KeepsTheOrderOfWhatIsPut) {
  Queue queue = Queue::create();
  for (std::int64_t i = 0; i < 5000; ++i) queue.put(number(i));
  EXPECT_EQ(queue.size(), 5000u);
  for (std::int64_t i = 0; i < 5000; ++i) ASSERT_EQ(number_in(queue.get_tensor()), i);
  EXPECT_TRUE(queue.empty());
}

TEST(Queue, GrowsWithoutAConsumer) {
  Watchdog watchdog;
  Queue queue = Queue::create();
  const Tensor tensor = number(1);
  for (int i = 0; i < 100'000; ++i) queue.put(tensor);
  EXPECT_EQ(queue.size(), 100'000u);
  EXPECT_EQ(stats().in_transit, 100'000u);
  for (int i = 0; i < 100'000; ++i) ASSERT_EQ(queue.get_tensor().data(), tensor.data());
}

TEST(Queue, PassesViewsAsTheyAre) {
  Queue queue = Queue::create();
  const Tensor whole = empty(Layout(DType::f32, {6, 4}));
  const Tensor view = whole.slice(1, 1, 3).slice(0, 2, 5);
  queue.put(view);
  queue.put(whole.with_layout(Layout(DType::f32, {1, 2, 3, 4}, {0, 1, 2, 4}), 16));
  queue.put(empty(Layout(DType::bf16, {3, 0})));
  const Tensor got = queue.get_tensor();
  EXPECT_EQ(got.data(), view.data());
  EXPECT_EQ(got.layout(), view.layout());
  EXPECT_EQ(queue.get_tensor().layout(), Layout(DType::f32, {1, 2, 3, 4}, {0, 1, 2, 4}));
  EXPECT_EQ(queue.get_tensor().layout(), Layout(DType::bf16, {3, 0}));
}

TEST(Queue, PassesATensorOf64Dimensions) {
  Queue queue = Queue::create();
  const std::vector<std::int64_t> ones(64, 1);
  const std::vector<std::int64_t> strides(64, 3);
  const Tensor tensor = empty(Layout(DType::u8, {1})).with_layout(Layout(DType::u8, ones, strides));
  queue.put(tensor);
  EXPECT_EQ(queue.get_tensor().layout(), tensor.layout());
}

TEST(Queue, PassesMessagesOfBytesAndTensors) {
  Queue queue = Queue::create();
  queue.put(Message{3, bytes_of("hello"), {number(1), number(2)}});
  queue.put(Message{});
  const Message message = queue.get();
  EXPECT_EQ(message.tag, 3u);
  EXPECT_EQ(message.data, bytes_of("hello"));
  ASSERT_EQ(message.tensors.size(), 2u);
  EXPECT_EQ(number_in(message.tensors[1]), 2);
  EXPECT_TRUE(queue.get().tensors.empty());
}

TEST(Queue, PassesAMessageOf50TensorsAndAMegabyte) {
  Queue queue = Queue::create();
  Message message{9, Bytes(1 << 20, std::byte{0x5a}), {}};
  for (std::int64_t i = 0; i < 50; ++i) message.tensors.push_back(number(i));
  queue.put(message);
  const Message got = queue.get();
  EXPECT_EQ(got.tag, 9u);
  EXPECT_EQ(got.data, message.data);
  ASSERT_EQ(got.tensors.size(), 50u);
  for (std::size_t i = 0; i < 50; ++i) EXPECT_EQ(got.tensors[i].data(), message.tensors[i].data());
}

TEST(Queue, GetTensorLeavesOtherMessagesWhereTheyAre) {
  Queue queue = Queue::create();
  queue.put(Message{1, bytes_of("x"), {number(5)}});
  expect_refusal(ErrorCode::invalid_argument, {"use get()"}, [&] { queue.get_tensor(); });
  EXPECT_EQ(queue.get().tensors.size(), 1u);
}

TEST(Queue, SpaceCanBeWaitedForWithoutPutting) {
  Watchdog watchdog;
  Queue queue = Queue::create({.maxsize = 1});
  EXPECT_TRUE(queue.wait_for_space());
  queue.put(number(1));
  EXPECT_FALSE(queue.wait_for_space());
  EXPECT_FALSE(queue.wait_for_space(1ms));
  std::thread getter([&] { EXPECT_EQ(number_in(queue.get_tensor()), 1); });
  EXPECT_TRUE(queue.wait_for_space(1h));
  getter.join();
  EXPECT_TRUE(queue.empty());
}

TEST(Queue, NobodyWaitsForSpaceInAClosedQueue) {
  Queue queue = Queue::create({.maxsize = 1});
  queue.put(number(1));
  queue.close();
  EXPECT_TRUE(queue.wait_for_space(1h));
}

TEST(Queue, IsBoundedByMaxsize) {
  Queue queue = Queue::create({2});
  EXPECT_EQ(queue.maxsize(), 2u);
  EXPECT_TRUE(queue.try_put(number(1)));
  EXPECT_TRUE(queue.try_put(number(2)));
  EXPECT_FALSE(queue.try_put(number(3)));
  EXPECT_FALSE(queue.try_put(number(3), 1ms));
  std::thread getter([&] { EXPECT_EQ(number_in(queue.get_tensor()), 1); });
  queue.put(number(3));
  getter.join();
  EXPECT_EQ(number_in(queue.get_tensor()), 2);
  EXPECT_EQ(number_in(queue.get_tensor()), 3);
}

TEST(Queue, GivesUpAtTheTimeout) {
  Queue queue = Queue::create();
  EXPECT_FALSE(queue.try_get());
  EXPECT_FALSE(queue.try_get_tensor());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(queue.try_get(30ms));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 30ms);
}

TEST(Queue, DrainsAfterClose) {
  Queue queue = Queue::create();
  queue.put(number(1));
  queue.close();
  EXPECT_TRUE(queue.is_closed());
  expect_refusal(ErrorCode::closed, {"closed"}, [&] { queue.put(number(2)); });
  EXPECT_EQ(number_in(queue.get_tensor()), 1);
  expect_refusal(ErrorCode::closed, {"closed"}, [&] { queue.get_tensor(); });
  expect_refusal(ErrorCode::closed, {"closed"}, [&] { queue.try_get(); });
}

TEST(Queue, CloseWakesAWaitingGetter) {
  Watchdog watchdog;
  Queue queue = Queue::create();
  std::thread getter([&] { expect_refusal(ErrorCode::closed, {}, [&] { queue.get(); }); });
  queue.close();
  getter.join();
}

TEST(Queue, RefusesMemoryOfOtherLibraries) {
  Queue queue = Queue::create();
  expect_refusal(ErrorCode::invalid_argument, {"empty tensor"}, [&] { queue.put(Tensor()); });
  const Tensor foreign = from_dlpack(to_dlpack_versioned(number(1)));
  expect_refusal(ErrorCode::invalid_argument, {"onecopy::copy"}, [&] { queue.put(foreign); });
  EXPECT_TRUE(queue.empty());
}

TEST(Queue, HandleIsForConnectOnly) {
  Queue queue = Queue::create();
  const Handle handle = Handle::from_text(queue.handle().to_text());
  expect_refusal(ErrorCode::bad_handle, {"Queue::connect"}, [&] { open(handle); });
  expect_refusal(ErrorCode::bad_handle, {"onecopy::open"}, [&] { Queue::connect(share(number(1))); });
  Queue same = Queue::connect(handle);
  same.put(number(4));
  EXPECT_EQ(number_in(queue.get_tensor()), 4);
}

TEST(Queue, KeepsWhatItsPutterHasLetGoOf) {
  Queue queue = Queue::create();
  queue.put(number(11));
  queue.put(Message{0, Bytes(4096), {number(12)}});
  for (int i = 0; i < 100; ++i) number(99);  // would reuse the memory
  EXPECT_EQ(number_in(queue.get_tensor()), 11);
  EXPECT_EQ(number_in(queue.get().tensors.at(0)), 12);
}

TEST(Queue, TakesOverATensorThatIsGiven) {
  Queue queue = Queue::create({.maxsize = 1});
  Tensor given = number(5);
  const void* const data = given.data();
  const std::uint64_t before = stats().live_blocks;
  queue.put(std::move(given));
  EXPECT_FALSE(given);  // NOLINT(bugprone-use-after-move): promised to be empty
  EXPECT_EQ(stats().live_blocks, before);
  EXPECT_EQ(queue.get_tensor().data(), data);
  EXPECT_TRUE(eventually([&] { return stats().live_blocks == before - 1; }));
}

TEST(Queue, LeavesATensorThatItHasNoSpaceForToItsGiver) {
  Queue queue = Queue::create({.maxsize = 1});
  queue.put(number(1));
  Tensor given = number(2);
  EXPECT_FALSE(queue.try_put(std::move(given)));
  EXPECT_EQ(number_in(given), 2);  // NOLINT(bugprone-use-after-move)
  queue.close();
  expect_refusal(ErrorCode::closed, {}, [&] { queue.put(std::move(given)); });
  EXPECT_EQ(number_in(given), 2);  // NOLINT(bugprone-use-after-move)
}

TEST(Queue, TakesOverATensorTooLargeForAnItem) {
  Queue queue = Queue::create();
  Tensor given = number(3).with_layout(Layout(DType::i64, std::vector<std::int64_t>(64, 1)));
  queue.put(std::move(given));
  EXPECT_FALSE(given);  // NOLINT(bugprone-use-after-move): promised to be empty
  EXPECT_EQ(number_in(queue.get_tensor()), 3);
}

TEST(Queue, ShowsWhatIsInTransitWithItsAge) {
  Queue queue = Queue::create();
  const auto before = stats().in_transit;
  queue.put(number(1));
  queue.put(number(2));
  EXPECT_EQ(stats().in_transit, before + 2);
  const auto age = [] {
    for (const TransitInfo& info : this_owner().in_transit)
      if (info.where.rfind("queue ", 0) == 0) return info.age_seconds;
    return 0.0;
  };
  EXPECT_TRUE(eventually([&] { return age() > 0.01; }));
  queue.get();
  queue.get();
  EXPECT_TRUE(eventually([&] { return stats().in_transit == before; }));
}

TEST(Queue, LeavesNothingBehind) {
  Watchdog watchdog;
  { Queue warm = Queue::create(); }
  const Footprint before = Footprint::unchanging();
  {
    Queue queue = Queue::create();
    for (int i = 0; i < 10'000; ++i) {
      queue.put(Message{0, Bytes(i % 300), {number(i)}});
      ASSERT_EQ(queue.get().tensors.size(), 1u);
    }
    queue.put(number(1));
    queue.get();
  }
  expect_soon(before);
}

/// Both find out where it is, and write that down (ThreadSanitizer).
TEST(Queue, TwoThreadsMayMeetASegmentForTheFirstTimeTogether) {
  Watchdog watchdog;
  const Tensor tensor = number(7);
  for (int round = 0; round < 50; ++round) {
    Queue queue = Queue::create();
    for (int i = 0; i < 6; ++i) queue.put(tensor);
    std::barrier start(2);
    const auto get = [&] {
      start.arrive_and_wait();
      for (int i = 0; i < 3; ++i) ASSERT_EQ(number_in(queue.get_tensor()), 7);
    };
    std::thread other(get);
    get();
    other.join();
  }
}

TEST(Queue, KeepsTheOrderOfEachOfSeveralProducers) {
  Watchdog watchdog;
  constexpr std::int64_t kEach = 20'000;
  Queue queue = Queue::create({64});
  std::vector<std::thread> threads;
  std::array<std::atomic<std::int64_t>, 2> sums{};
  for (std::int64_t p = 0; p < 2; ++p)
    threads.emplace_back([&, p] {
      for (std::int64_t i = 0; i < kEach; ++i) queue.put(number(p * kEach + i));
    });
  for (auto& sum : sums)
    threads.emplace_back([&] {
      std::array<std::int64_t, 2> last{-1, -1};
      for (std::int64_t i = 0; i < kEach; ++i) {
        const std::int64_t n = number_in(queue.get_tensor());
        auto& before = last[static_cast<std::size_t>(n / kEach)];
        ASSERT_LT(before, n);
        before = n;
        sum += n;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sums[0] + sums[1], (2 * kEach) * (2 * kEach - 1) / 2);
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace onecopy
