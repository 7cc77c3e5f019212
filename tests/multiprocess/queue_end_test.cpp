// SPDX-License-Identifier: Apache-2.0
// A queue that ends with its producers: what its consumers learn of the death of a producer.
#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "support/child.h"
#include "support/die_at.h"
#include "support/numbers.h"
#include "support/processes_test.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::expect_refusal;
using testing::JoinedChild;
using testing::kPatience;
using testing::number;
using testing::number_in;

Queue make_ending() { return Queue::create({.ends_with_producers = true}); }

Message tagged(std::uint32_t tag) { return {tag, {}, {}}; }

/// The watchdog comes if a get waits for ever.
class QueueThatEndsWithItsProducers : public testing::ProcessesTest {
 protected:
  /// Returns a child that has put `items` into the queue, and waits to be killed.
  Child make_producer(Queue& queue, std::int64_t items) {
    const int before = note->step;
    Child producer([&, handle = queue.handle()] {
      Queue mine = Queue::connect(handle);
      for (std::int64_t i = 0; i < items; ++i) mine.put(number(i));
      ++note->step;
      note->serve_until(1000);
    });
    note->reach(before + 1);
    return producer;
  }
};

TEST_F(QueueThatEndsWithItsProducers, DeliversWhatAKilledProducerPutAndThenThrowsClosed) {
  Queue queue = make_ending();
  Child producer = make_producer(queue, 3);
  producer.kill();
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(number_in(queue.get_tensor()), i);
  expect_refusal(ErrorCode::closed, {}, [&] { queue.get(); });
  EXPECT_TRUE(queue.is_closed());
}

TEST_F(QueueThatEndsWithItsProducers, WakesAConsumerThatWaitsWhileTheOnlyProducerIsKilled) {
  Queue queue = make_ending();
  Child producer = make_producer(queue, 1);
  EXPECT_EQ(number_in(queue.get_tensor()), 0);
  std::thread waiting([&] { expect_refusal(ErrorCode::closed, {}, [&] { queue.get(); }); });
  EXPECT_FALSE(queue.try_get(10ms));
  producer.kill();
  waiting.join();
}

TEST_F(QueueThatEndsWithItsProducers, TellsWhoPollsWithoutWaiting) {
  Queue queue = make_ending();
  Child producer = make_producer(queue, 0);
  EXPECT_FALSE(queue.try_get());
  queue.put(tagged(1));
  Queue other = Queue::connect(queue.handle());
  EXPECT_EQ(other.get().tag, 1u);
  EXPECT_FALSE(queue.try_get());  // this process is a producer
  Child consumer([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    note->step = 100;
    EXPECT_TRUE(testing::eventually([&] { return mine.is_closed(); }));
    expect_refusal(ErrorCode::closed, {}, [&] { mine.try_get(); });
  });
  note->reach(100);
  { const Queue last = std::move(queue), again = std::move(other); }
  EXPECT_EQ(consumer.join(), 0);
}

TEST_F(QueueThatEndsWithItsProducers, MakesItsDescriptorReadable) {
  Queue queue = make_ending();
  const int fd = queue.ready_fd();
  Child producer = make_producer(queue, 1);
  EXPECT_EQ(number_in(queue.get_tensor()), 0);
  producer.kill();
  pollfd entry{fd, POLLIN, 0};
  ASSERT_EQ(::poll(&entry, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())), 1);
  expect_refusal(ErrorCode::closed, {}, [&] { queue.try_get(); });
}

TEST_F(QueueThatEndsWithItsProducers, GoesOnWhileAnotherProducerLives) {
  Queue queue = make_ending();
  Child first = make_producer(queue, 1), second = make_producer(queue, 1);
  first.kill();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(number_in(queue.get_tensor()), 0);
  EXPECT_FALSE(queue.try_get(300ms));
  second.signal(SIGSTOP);
  EXPECT_FALSE(queue.try_get(300ms));
  EXPECT_FALSE(queue.is_closed());
  second.kill();
  expect_refusal(ErrorCode::closed, {}, [&] { queue.get(); });
}

TEST_F(QueueThatEndsWithItsProducers, WaitsForTheFirstProducer) {
  Queue queue = make_ending();
  EXPECT_FALSE(queue.try_get(300ms));
  JoinedChild producer([&, handle = queue.handle()] { Queue::connect(handle).put(number(7)); });
  EXPECT_EQ(number_in(queue.get_tensor()), 7);
}

TEST_F(QueueThatEndsWithItsProducers, CountsAProducerFromPreparePutOn) {
  Queue queue = make_ending();
  Child producer([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    mine.prepare_put({}, 0ms);
    note->step = 1;
    note->serve_until(2);
  });
  note->reach(1);
  EXPECT_FALSE(queue.try_get(300ms));
  producer.kill();
  expect_refusal(ErrorCode::closed, {}, [&] { queue.get(); });
}

TEST_F(QueueThatEndsWithItsProducers, DoesNotCountAForkedChildOfAProducerThatPutsNothing) {
  Queue queue = make_ending();
  queue.put(number(1));
  Child child([&] {
    EXPECT_EQ(number_in(queue.get_tensor()), 1);
    note->step = 1;
    note->reach(2);
    expect_refusal(ErrorCode::closed, {}, [&] { queue.get(); });
  });
  note->reach(1);
  { const Queue last = std::move(queue); }
  note->step = 2;
  EXPECT_EQ(child.join(), 0);
}

TEST_F(QueueThatEndsWithItsProducers, IsLeftByTheObjectThatIsAssignedAnother) {
  Queue queue = make_ending();
  queue.put(number(1));
  JoinedChild consumer([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    EXPECT_EQ(number_in(mine.get_tensor()), 1);
    note->step = 1;
    expect_refusal(ErrorCode::closed, {}, [&] { mine.get(); });
  });
  note->reach(1);
  queue = Queue::create();
  queue.put(number(2));
}

TEST_F(QueueThatEndsWithItsProducers, EndsWhereverInAPutTheProducerDies) {
  for (const char* at : {"queue.producer.held", "ring.put.locked", "ring.put.written", "ring.put.intended",
                         "ring.put.committed", "ring.put.settled", "ring.put.unlocked"}) {
    Queue queue = make_ending();
    JoinedChild other([&, handle = queue.handle()] { Queue::connect(handle).put(number(1)); });
    EXPECT_EQ(number_in(queue.get_tensor()), 1);
    Child producer([&, handle = queue.handle()] {
      Queue mine = Queue::connect(handle);
      testing::die_at(at);
      mine.put(number(2));
    });
    producer.join();
    try {
      EXPECT_EQ(number_in(queue.get_tensor()), 2) << at;
      queue.get();
      ADD_FAILURE() << at;
    } catch (const Error& error) {
      EXPECT_STREQ(name(error.code()), "closed") << at;
    }
  }
}

TEST_F(QueueThatEndsWithItsProducers, IsNotWhatOtherQueuesAre) {
  Queue queue = Queue::create();
  Child producer = make_producer(queue, 1);
  producer.kill();
  EXPECT_EQ(number_in(queue.get_tensor()), 0);
  EXPECT_FALSE(queue.try_get(300ms));
  EXPECT_FALSE(queue.is_closed());
}

}  // namespace
}  // namespace onecopy
