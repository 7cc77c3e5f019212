// SPDX-License-Identifier: Apache-2.0
// An item of a queue arrives as long as a process known to its receiver has its memory: the owner, its putter, the
// queue's creator, or the process that has handed the queue on.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/deadline_scope.h"
#include "support/child.h"
#include "support/limits.h"
#include "support/no_pidfd.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/processes_test.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::eventually;
using testing::JoinedChild;
using testing::last_of;
using testing::Note;
using testing::number_in;
using testing::numbers;
using testing::ProcessesTest;
using testing::Shared;
using testing::Watchdog;

constexpr int kRounds = 4;
constexpr int kEnd = 1000;  ///< the last step

/// A fork that does not die with its parent.
template <class Body>
void fork_orphan(const Body& body) {
  if (fork() != 0) return;
  alarm(60);
  body();
  _exit(0);
}

/// Shares a tensor, and is there until it is killed.
Child owner_of_numbers(Note& note, std::int64_t first) {
  return Child([&note, first] {
    const Tensor tensor = numbers(1000, first);
    note.write(share(tensor).to_text());
    ::pause();
  });
}

/// A process that has never had the queue or the tensor's owner before.
void expect_fresh_receiver_gets(const Handle& queue, std::int64_t first) {
  JoinedChild receiver([&] {
    Queue mine = Queue::connect(queue);
    const auto message = mine.try_get(10s);
    ASSERT_TRUE(message);
    EXPECT_EQ(number_in(message->tensors.at(0)), first);
  });
}

/// A tensor of an owner that is killed, a process that holds it and puts it into our queue when it is told to: with
/// so many bytes beside it that the message is in the ring, or in a block of the putter's.
class HeldByItsPutter : public ::testing::TestWithParam<std::size_t> {
 protected:
  HeldByItsPutter() { owner_.emplace(owner_of_numbers(*text_, 7)); }

  /// Steps: 1 it holds the tensor, an odd one: it has put it; kEnd: it lets go.
  void start_putter() {
    putter_.emplace([this, handle = queue_.handle()] {
      Queue mine = Queue::connect(handle);
      Tensor tensor = open(Handle::from_text(text_->read()));
      for (int step = 1; step < kEnd; step += 2) {
        steps_->step = step;
        EXPECT_TRUE(eventually([&] { return steps_->step > step; }));
        if (steps_->step != kEnd) mine.put(Message{0, Bytes(GetParam()), {tensor}});
        EXPECT_EQ(stats().unkept, 0u);
        if (steps_->step == kEnd) break;
      }
      tensor.release();
      ::pause();
    });
    steps_->reach(1);
  }
  void kill_owner() { owner_->kill(); }
  void put() {
    const int step = steps_->step;
    steps_->step = step + 1;
    steps_->reach(step + 2);
  }
  void let_go() { steps_->step = kEnd; }
  /// Of the putter's own memory, which it may put for as long as it lives.
  static std::uint64_t other_deposits() { return GetParam() == 0 ? 0 : 1; }

  Watchdog watchdog_;
  Shared<Note> text_, steps_;
  Queue queue_ = Queue::create();
  std::optional<Child> owner_;
  std::optional<Child> putter_;
};

TEST_P(HeldByItsPutter, ATensorOfADeadOwnerArrivesAtEveryNewReceiver) {
  start_putter();
  kill_owner();
  for (int i = 0; i < kRounds; ++i) {
    put();
    expect_fresh_receiver_gets(queue_.handle(), 7);
    collect();
  }
}

TEST_P(HeldByItsPutter, ATensorOfADeadOwnerArrivesWhenItsPutterHasEnded) {
  start_putter();
  kill_owner();
  for (int i = 0; i < kRounds; ++i) {
    put();
    expect_fresh_receiver_gets(queue_.handle(), 7);
    collect();
    EXPECT_EQ(stats().deposits, 1 + other_deposits()) << "it puts more of it without another deposit";
  }
  put();
  const std::uint64_t borrowers = stats().borrowers;
  putter_->kill();
  EXPECT_TRUE(eventually([&] { return stats().borrowers < borrowers; }));
  collect();
  expect_fresh_receiver_gets(queue_.handle(), 7);
  EXPECT_TRUE(eventually([] { return stats().deposits == 0; }));
}

TEST_P(HeldByItsPutter, ATensorOfADeadOwnerIsKeptByTheCreatorUntilItsPutterLetsGo) {
  start_putter();
  kill_owner();
  put();
  EXPECT_EQ(number_in(queue_.get().tensors.at(0)), 7);
  collect();
  EXPECT_EQ(stats().deposits, 1 + other_deposits());
  let_go();
  EXPECT_TRUE(eventually([] { return stats().deposits == other_deposits(); }));
  EXPECT_FALSE(putter_->has_ended());
}

INSTANTIATE_TEST_SUITE_P(Messages, HeldByItsPutter, ::testing::Values(0, 5000),
                         [](const auto& size) { return size.param == 0 ? "InTheRing" : "Elsewhere"; });

TEST(HeldByAPutter, ThatHasClosedTheQueueItIsKeptByTheCreatorNoMore) {
  const Watchdog watchdog;
  Shared<Note> text, note;
  Child owner = owner_of_numbers(*text, 7);
  Child putter([&] {  // it has not inherited the queue
    const Tensor tensor = open(Handle::from_text(text->read()));
    {
      Queue mine = Queue::connect(Handle::from_text(note->read()));
      note->reach(2);
      mine.put(tensor);
      note->step = 3;
      note->reach(4);
    }
    note->serve_until(kEnd);
  });
  Queue queue = Queue::create();
  note->write(queue.handle().to_text());
  EXPECT_TRUE(eventually([] { return stats().borrowers != 0; }));
  owner.kill();
  note->step = 2;
  note->reach(3);
  EXPECT_EQ(number_in(queue.get_tensor()), 7);
  collect();
  EXPECT_EQ(stats().deposits, 1u);
  note->step = 4;
  EXPECT_TRUE(eventually([] { return stats().deposits == 0; }));
  note->step = kEnd;
  EXPECT_EQ(putter.join(), 0);
}

class HeldByAChild : public ProcessesTest {};

/// A daemon: it has by fork what its dead parent allocated.
TEST_F(HeldByAChild, WhatItsDeadParentAllocatedArrivesAtEveryNewReceiver) {
  Queue queue = Queue::create();
  Child parent([&, handle = queue.handle()] {
    const Tensor tensor = numbers(1000, 7);
    const Handle shared = share(tensor);
    fork_orphan([&] {
      note->reach(1);
      Queue mine = Queue::connect(handle);
      for (int i = 0; i < kRounds; ++i) {
        mine.put(tensor);
        note->step = 2 * i + 2;
        note->reach(2 * i + 3);
      }
      note->serve_until(kEnd);
    });
  });
  EXPECT_EQ(parent.join(), 0);
  note->step = 1;
  for (int i = 0; i < kRounds; ++i) {
    note->reach(2 * i + 2);
    expect_fresh_receiver_gets(queue.handle(), 7);
    collect();
    note->step = 2 * i + 3;
  }
  note->step = kEnd;
}

/// It has inherited one segment, and opened another of the same owner.
TEST_F(HeldByAChild, WhatItHasInheritedIsPassedOnThoughItHasOpenedMoreOfItsParent) {
  constexpr std::int64_t kMany = 8 << 20;
  Child parent([&] {
    const Tensor early = numbers(1000, 7);
    fork_orphan([&] {
      const Tensor late = open(Handle::from_text(note->read()));
      note->write(share(early).to_text(), 2);
      note->reach(4);
      note->write(share(late).to_text(), 5);
      note->serve_until(kEnd);
    });
    const Tensor late = numbers(kMany);  // in a segment of its own
    note->write(share(late).to_text());
    note->reach(3);
  });
  const std::string early = note->read(2);
  note->step = 3;
  EXPECT_EQ(parent.join(), 0);
  EXPECT_EQ(Child([&] { EXPECT_EQ(number_in(open(Handle::from_text(early))), 7); }).join(), 0);
  note->step = 4;
  const std::string late = note->read(5);
  EXPECT_EQ(Child([&] { EXPECT_EQ(last_of(open(Handle::from_text(late))), kMany - 1); }).join(), 0);
  note->step = kEnd;
}

/// It has a connection to its parent for a queue only.
TEST_F(HeldByAChild, WhatItHasInheritedIsPassedOnThoughItUsesAQueueOfItsParent) {
  Child parent([&] {
    const Tensor tensor = numbers(1000, 7);
    fork_orphan([&] {
      Queue queue = Queue::connect(Handle::from_text(note->read()));
      queue.put(tensor);
      note->write(queue.handle().to_text(), 2);
      note->reach(4);
      queue.put(tensor);
      note->step = 5;
      note->serve_until(kEnd);
    });
    const Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    note->reach(3);
  });
  const Handle handle = Handle::from_text(note->read(2));
  Queue queue = Queue::connect(handle);
  note->step = 3;
  EXPECT_EQ(parent.join(), 0);
  expect_fresh_receiver_gets(queue.handle(), 7);
  note->step = 4;
  note->reach(5);
  expect_fresh_receiver_gets(queue.handle(), 7);
  note->step = kEnd;
}

/// A queue that a child has created, which can be killed and stopped.
class OfADeadOrSlowCreator : public ::testing::Test {
 protected:
  OfADeadOrSlowCreator() {
    creator_.emplace([this] {
      Queue queue = Queue::create();
      note_->write(queue.handle().to_text());
      note_->reach(10);
    });
  }
  Handle handle() { return Handle::from_text(note_->read()); }

  const int patience_ = reply_timeout_ms;
  Watchdog watchdog_;
  Shared<Note> note_, text_;
  std::optional<Child> creator_;
};

TEST_F(OfADeadOrSlowCreator, AQueueDeliversWhatItsPutterHolds) {
  Child owner = owner_of_numbers(*text_, 7);
  Queue queue = Queue::connect(handle());
  Child receiver([&, handle = handle()] {
    Queue mine = Queue::connect(handle);
    note_->step = 2;
    note_->reach(3);
    const auto first = mine.try_get_tensor(10s);
    ASSERT_TRUE(first);
    EXPECT_EQ(number_in(*first), 7);
    const auto second = mine.try_get_tensor(10s);
    ASSERT_TRUE(second);
    EXPECT_EQ(number_in(*second), 7);
  });
  note_->reach(2);
  const Tensor tensor = open(Handle::from_text(text_->read()));
  owner.kill();
  queue.put(tensor);  // while the creator lives, which keeps it
  creator_->kill();
  queue.put(tensor);
  note_->step = 3;
  EXPECT_EQ(receiver.join(), 0);
}

TEST_F(OfADeadOrSlowCreator, AStoppedOneIsNotNeededForWhatALivingPutterHolds) {
  Child owner = owner_of_numbers(*text_, 7);
  Queue queue = Queue::connect(handle());
  Child receiver([&, handle = handle()] {
    Queue mine = Queue::connect(handle);
    note_->step = 2;
    note_->reach(3);
    reply_timeout_ms = 500;
    std::optional<Tensor> taken;
    EXPECT_TRUE(eventually([&] {
      try {
        taken = mine.try_get_tensor(10s);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
      }
      return taken.has_value();
    }));
    EXPECT_EQ(number_in(taken.value()), 7);
  });
  note_->reach(2);
  const Tensor tensor = open(Handle::from_text(text_->read()));
  owner.kill();
  queue.put(tensor);
  creator_->signal(SIGSTOP);
  note_->step = 3;
  EXPECT_EQ(receiver.join(), 0);
  creator_->signal(SIGCONT);
}

/// The deposit arrives at it after its putter has ended.
TEST_F(OfADeadOrSlowCreator, ADepositThatWasTakenLateIsFoundThere) {
  Queue queue = Queue::connect(handle());
  Child putter([&, handle = handle()] {
    Queue mine = Queue::connect(handle);
    note_->step = 2;
    note_->reach(3);
    EXPECT_TRUE(mine.try_put(numbers(1000, 7), 0ms));
    EXPECT_EQ(stats().unkept, 1u);
    raise(SIGKILL);
  });
  note_->reach(2);
  creator_->signal(SIGSTOP);
  note_->step = 3;
  EXPECT_EQ(putter.join(), -SIGKILL);
  creator_->signal(SIGCONT);
  expect_fresh_receiver_gets(queue.handle(), 7);
}

/// It keeps the items in the queue when it got it; so does every other process that has it.
TEST_F(OfADeadOrSlowCreator, WhatItHasPutItselfArrivesAtWhoHasTheQueueFromAnother) {
  Shared<Note> note;
  Child creator([&] {
    Queue queue = Queue::create();
    queue.put(numbers(1000, 7));
    note->write(queue.handle().to_text());
    ::pause();
  });
  const Queue queue = Queue::connect(Handle::from_text(note->read()));
  creator.kill();
  expect_fresh_receiver_gets(queue.handle(), 7);
}

/// It closed the connection, and may have dropped its deposits.
TEST_F(OfADeadOrSlowCreator, OneThatHungUpIsAskedAgain) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers need descriptors of their own";
  Shared<Note> note;
  Child creator([&] {
    const Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    note->reach(2);
    testing::Limit limit(RLIMIT_NOFILE, testing::descriptors_for(0));
    note->step = 3;
    note->reach(4);
    limit.lift();
    note->step = 5;
    note->reach(6);
  });
  Queue queue = Queue::connect(Handle::from_text(note->read()));
  const Tensor small = numbers(100);
  const Tensor large = numbers(5 << 20);  // in a segment of its own
  const std::uint64_t unkept = stats().unkept;
  queue.put(small);
  EXPECT_EQ(stats().unkept, unkept);
  note->step = 2;
  note->reach(3);
  EXPECT_TRUE(queue.try_put(large, 0ms));  // the creator cannot receive the descriptors
  EXPECT_EQ(stats().unkept, unkept + 1);
  note->step = 4;
  note->reach(5);
  EXPECT_TRUE(eventually([&] {
    queue.put(small);
    queue.put(large);
    return stats().unkept == unkept;
  }));
  note->step = 6;
  EXPECT_EQ(creator.join(), 0);
}

/// No process keeps later items, should we die now.
Queue queue_of_a_dead_creator() {
  const Shared<Note> note;
  Child creator([&] {
    const Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    ::pause();
  });
  Queue queue = Queue::connect(Handle::from_text(note->read()));
  creator.kill();
  EXPECT_TRUE(eventually([&] {
    queue.put(numbers(100, 7));
    EXPECT_EQ(number_in(queue.get_tensor()), 7);
    return stats().unkept != 0;
  }));
  return queue;
}

TEST(Unkept, FallsWhenItsQueueIsClosedAndEmpty) {
  const Watchdog watchdog;
  Queue queue = queue_of_a_dead_creator();
  queue.put(numbers(100, 7));
  queue.close();
  EXPECT_NE(stats().unkept, 0u) << "one item can still be lost";
  EXPECT_EQ(number_in(queue.get_tensor()), 7);
  EXPECT_TRUE(eventually([] { return stats().unkept == 0; }));
}

TEST(Unkept, FallsWithTheLastReferenceToItsQueue) {
  const Watchdog watchdog;
  {
    const Queue queue = queue_of_a_dead_creator();
    EXPECT_NE(stats().unkept, 0u);
  }
  EXPECT_TRUE(eventually([] { return stats().unkept == 0; }));
}

/// Behaves as in old sandboxes, and on Linux before 5.3. The creator sees the putter's end by the mark on its table.
TEST(ItemHolders, ACreatorThatCannotOpenAPidfdKeepsItemsForTheTimeAfterTheirPuttersEnd) {
  const Watchdog watchdog;
  Shared<Note> note;
  Child creator([&] {
    if (!testing::refuse_pidfd_open()) return note->write("no filter");
    Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    note->reach(2);
    const auto tensor = queue.try_get_tensor(10s);
    ASSERT_TRUE(tensor);
    EXPECT_EQ(last_of(*tensor), 999);
    EXPECT_TRUE(eventually([] { return stats().deposits == 0; }));
  });
  const std::string text = note->read();
  if (text == "no filter") GTEST_SKIP() << "wants a kernel with seccomp filters";
  Child putter([&] { Queue::connect(Handle::from_text(text)).put(numbers(1000)); });
  EXPECT_EQ(putter.join(), 0);
  note->step = 2;
  EXPECT_EQ(creator.join(), 0);
}

}  // namespace
}  // namespace onecopy
