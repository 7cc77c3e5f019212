// SPDX-License-Identifier: Apache-2.0
// Tensors that pass through processes which do not live to see them arrive.
#include <gtest/gtest.h>
#include <unistd.h>

#include "onecopy/channel/queue.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/child.h"
#include "support/note.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::eventually;
using testing::Note;
using testing::Shared;

Tensor numbers(std::int64_t count) {
  Tensor tensor = empty(Layout(DType::i64, {count}));
  for (std::int64_t i = 0; i < count; ++i) tensor.as<std::int64_t>()[i] = i;
  return tensor;
}

enum class End { exits, is_killed };

/// Producer puts and lets go, forwarder passes on and ends, receiver gets. `extra` bytes make the
/// message too large for the queue's own memory.
void forward(End end, std::size_t extra) {
  Shared<Note> note;
  Queue first = Queue::create();
  Queue second = Queue::create();
  const Handle from = first.handle(), to = second.handle();
  Child producer([&] {
    Queue queue = Queue::connect(from);
    queue.put(numbers(1000));
    note->reach(1);
    EXPECT_TRUE(eventually([] { return stats().borrowers == 0; }));  // it knows of the death
    for (int i = 0; i < 50; ++i) numbers(1000);
    note->step = 2;
    note->reach(3);
  });
  Child forwarder([&] {
    Queue in = Queue::connect(from);
    Queue out = Queue::connect(to);
    Message message;
    message.tensors.push_back(in.get_tensor());
    message.data.resize(extra);
    out.put(message);
    note->step = 1;
    if (end == End::is_killed) pause();
  });
  note->reach(1);
  if (end == End::is_killed) forwarder.kill();
  forwarder.join();
  note->reach(2);
  const Message message = second.get();
  EXPECT_EQ(message.data.size(), extra);
  ASSERT_EQ(message.tensors.size(), 1u);
  EXPECT_EQ(message.tensors[0].as<std::int64_t>()[999], 999);
  note->step = 3;
  EXPECT_EQ(producer.join(), 0);
}

TEST(Forwarding, ATensorArrivesAfterItsForwarderHasExited) { forward(End::exits, 0); }
TEST(Forwarding, ATensorArrivesAfterItsForwarderWasKilled) { forward(End::is_killed, 0); }
TEST(Forwarding, ALargeMessageArrivesAfterItsForwarderHasExited) { forward(End::exits, 100'000); }
TEST(Forwarding, ALargeMessageArrivesAfterItsForwarderWasKilled) { forward(End::is_killed, 100'000); }

TEST(Forwarding, WhatHasArrivedIsNotInTransitAnyMore) {
  Queue queue = Queue::create();
  Child receiver([&, handle = queue.handle()] {
    Queue in = Queue::connect(handle);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(in.get_tensor().as<std::int64_t>()[999], 999);
  });
  for (int i = 0; i < 100; ++i) queue.put(numbers(1000));
  EXPECT_EQ(receiver.join(), 0);
  EXPECT_TRUE(eventually([] { return stats().in_transit == 0; }));
}

}  // namespace
}  // namespace onecopy
