// SPDX-License-Identifier: Apache-2.0
// Tensors that pass through processes which do not live to see them arrive.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <thread>

#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/deadline_scope.h"
#include "share/broker/broker.h"
#include "share/format/process_name.h"
#include "share/runtime/runtime.h"
#include "support/child.h"
#include "support/die_at.h"
#include "support/limits.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::element;
using testing::eventually;
using testing::JoinedChild;
using testing::last_of;
using testing::Note;
using testing::numbers;
using testing::Shared;
using testing::Watchdog;

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
  EXPECT_EQ(element(message.tensors[0], 999), 999);
  note->step = 3;
  EXPECT_EQ(producer.join(), 0);
}

TEST(Forwarding, ATensorArrivesAfterItsForwarderHasExited) { forward(End::exits, 0); }
TEST(Forwarding, ATensorArrivesAfterItsForwarderWasKilled) { forward(End::is_killed, 0); }
TEST(Forwarding, ALargeMessageArrivesAfterItsForwarderHasExited) { forward(End::exits, 100'000); }
TEST(Forwarding, ALargeMessageArrivesAfterItsForwarderWasKilled) { forward(End::is_killed, 100'000); }

/// The owner of the forwarded memory has both queues open: it sees when the item is taken.
void free_after_taking(End end, std::size_t extra) {
  Watchdog watchdog;
  after_transit_ms = 100;
  Queue first = Queue::create();
  Queue second = Queue::create();
  const std::uint64_t live = stats().live_blocks;
  first.put(numbers(1000));
  Child forwarder([&, from = first.handle(), to = second.handle()] {
    Queue in = Queue::connect(from);
    Queue out = Queue::connect(to);
    Message message;
    message.tensors.push_back(in.get_tensor());
    message.data.resize(extra);
    out.put(message);
    if (end == End::is_killed) raise(SIGKILL);
  });
  EXPECT_EQ(forwarder.join(), end == End::is_killed ? -SIGKILL : 0);
  EXPECT_TRUE(eventually([] { return stats().borrowers == 0 && stats().limbo == 1; }));
  for (int i = 0; i < 50; ++i) numbers(1000);
  EXPECT_EQ(stats().in_transit, 1u);
  Message message = second.get();
  EXPECT_EQ(last_of(message.tensors.at(0)), 999);
  message = {};
  EXPECT_TRUE(eventually([&] {
    const Stats now = stats();
    return now.in_transit == 0 && now.limbo == 0 && now.live_blocks == live;
  }));
  after_transit_ms = 5000;
}

TEST(Forwarding, WhatAnExitedForwarderLeftIsFreeSoonAfterItsItemIsTaken) {
  free_after_taking(End::exits, 0);
}
TEST(Forwarding, WhatAKilledForwarderLeftIsFreeSoonAfterItsItemIsTaken) {
  free_after_taking(End::is_killed, 0);
}
TEST(Forwarding, WhatALargeMessageLeftIsFreeSoonAfterItIsTaken) { free_after_taking(End::exits, 100'000); }

/// The last item is in the ring, and its putter had no time to count it.
TEST(Forwarding, AnItemThatItsForwarderDiedOnIsWaitedForToo) {
  Watchdog watchdog;
  after_transit_ms = 0;
  Queue first = Queue::create();
  Queue second = Queue::create();
  first.put(numbers(1000));
  Child forwarder([from = first.handle(), to = second.handle()] {
    Queue in = Queue::connect(from);
    Queue out = Queue::connect(to);
    testing::die_at("ring.put.committed");
    out.put(in.get_tensor());
  });
  EXPECT_EQ(forwarder.join(), -SIGKILL);
  EXPECT_TRUE(eventually([] { return stats().borrowers == 0 && stats().limbo == 1; }));
  std::this_thread::sleep_for(100ms);  // some ticks
  for (int i = 0; i < 50; ++i) numbers(1000);
  EXPECT_EQ(last_of(second.get_tensor()), 999);
  EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  after_transit_ms = 5000;
}

/// Only it knows that an item still holds the block.
TEST(Forwarding, WhatAStoppedOwnerHasFreedStaysInTheQueueUntilItCanBeAsked) {
  Watchdog watchdog;
  Shared<Note> note;
  Queue first = Queue::create();
  Queue second = Queue::create();
  JoinedChild owner([&, from = first.handle()] {
    Queue queue = Queue::connect(from);
    queue.put(numbers(10));
    EXPECT_TRUE(eventually([] { return stats().live_blocks == 0 && stats().limbo == 0; }));
    queue.put(numbers(1000));
    note->step = 1;
    note->reach(2);
    EXPECT_TRUE(eventually([] { return stats().limbo == 1; }));
    note->step = 3;
    note->reach(4);
  });
  EXPECT_EQ(last_of(first.get_tensor()), 9);  // from here on there is a connection to the owner
  note->reach(1);
  JoinedChild forwarder([&, from = first.handle(), to = second.handle()] {
    Queue in = Queue::connect(from);
    Queue out = Queue::connect(to);
    out.put(in.get_tensor());
    note->step = 2;
    note->reach(4);
  });
  note->reach(3);
  owner.signal(SIGSTOP);
  testing::expect_refusal(ErrorCode::timeout, {"did not answer", "stopped"}, [&] { second.try_get(); });
  EXPECT_EQ(second.size(), 1u);
  owner.signal(SIGCONT);
  EXPECT_EQ(last_of(second.get_tensor()), 999);
  note->step = 4;
}

/// Between the end of a killed process's sockets and the end of the process, a busy machine may take its time. Only
/// from then on it is certain that the block which an item holds was not used again.
TEST(Forwarding, AnItemWaitsWhileItsOwnerIsDying) {
  Watchdog watchdog;
  Shared<Note> note;
  Queue first = Queue::create();
  Queue second = Queue::create();
  Child owner([&, from = first.handle()] {
    Queue queue = Queue::connect(from);
    queue.put(numbers(10));
    EXPECT_TRUE(eventually([] { return stats().live_blocks == 0 && stats().limbo == 0; }));
    queue.put(numbers(1000));
    note->step = 1;
    note->reach(2);
    EXPECT_TRUE(eventually([] { return stats().limbo == 1; }));
    ::syscall(SYS_close_range, 3U, ~0U, 0U);  // as the kernel does first
    note->step = 3;
    note->reach(4);
    ::_exit(0);
  });
  // The forwarder is forked before this process opens memory of a device.
  JoinedChild forwarder([&, from = first.handle(), to = second.handle()] {
    Queue in = Queue::connect(from);
    Queue out = Queue::connect(to);
    note->reach(1);
    out.put(in.get_tensor());
    note->step = 2;
    note->reach(5);
  });
  EXPECT_EQ(last_of(first.get_tensor()), 9);  // opens the connection to the owner
  note->reach(3);
  for (int i = 0; i < 3; ++i)
    testing::expect_refusal(ErrorCode::timeout, {"has closed the connection and lives"},
                            [&] { second.try_get(200ms); });
  EXPECT_EQ(second.size(), 1u);
  note->step = 4;
  EXPECT_EQ(owner.join(), 0);
  EXPECT_EQ(last_of(second.get_tensor()), 999);
  note->step = 5;
}

/// The last number of the item, which stays in its place while its owner takes too long.
std::optional<std::int64_t> answered_in_time(Queue& queue) {
  try {
    return last_of(queue.get_tensor());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
    return {};
  }
}

/// It lives, and has closed the connection for want of descriptors.
TEST(Forwarding, WhatAnOwnerHasFreedThatHungUpOnUsIsAskedForAnew) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers need descriptors of their own";
  Watchdog watchdog;
  Shared<Note> note;
  Queue first = Queue::create();
  Queue second = Queue::create();
  Child owner([&, from = first.handle()] {
    Queue queue = Queue::connect(from);
    const Tensor kept = numbers(10);
    queue.put(kept);
    queue.put(numbers(1000));
    note->reach(1);
    EXPECT_TRUE(eventually([] { return stats().limbo == 1; }));
    testing::Limit limit(RLIMIT_NOFILE, testing::descriptors_for(0));
    note->step = 2;
    note->reach(3);
    limit.lift();
    note->step = 4;
    note->reach(5);
  });
  const Tensor kept = first.get_tensor();
  Child forwarder([&, from = first.handle(), to = second.handle()] {
    Queue in = Queue::connect(from);
    Queue out = Queue::connect(to);
    out.put(in.get_tensor());
    note->step = 1;
    note->reach(5);
  });
  note->reach(2);
  Child child([&] { EXPECT_EQ(last_of(kept), 9); });  // the owner cannot take its page
  EXPECT_EQ(child.join(), 0);
  Peer& of_owner = *Runtime::current().peers().find_open(share(kept).fields().owner);
  EXPECT_TRUE(eventually([&] { return of_owner.broker().is_over(); }));
  note->step = 3;
  note->reach(4);
  reply_timeout_ms = 500;  // which is how long it may take to find out that it has not died
  EXPECT_TRUE(eventually([&] { return answered_in_time(second) == 999; }));
  reply_timeout_ms = 10'000;
  note->step = 5;
  EXPECT_EQ(forwarder.join(), 0);
  EXPECT_EQ(owner.join(), 0);
}

/// An owner that has not opened the queue cannot see it, and keeps the block.
TEST(Forwarding, WhatIsInAQueueThatTheOwnerDoesNotHaveIsKept) {
  Watchdog watchdog;
  Shared<Note> note;
  Queue first = Queue::create();
  Queue second = Queue::create();
  JoinedChild producer([&, from = first.handle()] {
    after_transit_ms = 0;
    Queue queue = Queue::connect(from);
    queue.put(numbers(1000));
    note->reach(1);
    EXPECT_TRUE(eventually([] { return stats().borrowers == 0 && stats().limbo == 1; }));
    std::this_thread::sleep_for(100ms);  // some ticks
    for (int i = 0; i < 50; ++i) numbers(1000);
    note->step = 2;
    note->reach(3);
  });
  Child forwarder([from = first.handle(), to = second.handle()] {
    Queue in = Queue::connect(from);
    Queue out = Queue::connect(to);
    out.put(in.get_tensor());
  });
  EXPECT_EQ(forwarder.join(), 0);
  note->step = 1;
  note->reach(2);
  EXPECT_EQ(last_of(second.get_tensor()), 999);
  note->step = 3;
}

TEST(Forwarding, WhatHasArrivedIsNotInTransitAnyMore) {
  Queue queue = Queue::create();
  Child receiver([&, handle = queue.handle()] {
    Queue in = Queue::connect(handle);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(element(in.get_tensor(), 999), 999);
  });
  for (int i = 0; i < 100; ++i) queue.put(numbers(1000));
  EXPECT_EQ(receiver.join(), 0);
  EXPECT_TRUE(eventually([] { return stats().in_transit == 0; }));
}

}  // namespace
}  // namespace onecopy
