// SPDX-License-Identifier: Apache-2.0 Owners whose processes become other programs by exec, and live on as these
// programs: their memory is as good as a dead owner's.
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <optional>

#include "onecopy/channel/queue.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/process.h"
#include "support/child.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::element;
using testing::eventually;
using testing::Note;
using testing::numbers;
using testing::Shared;
using testing::Watchdog;

constexpr int kEnd = 1000;

void become_another_program() { execlp("sleep", "sleep", "600", nullptr); }

/// An owner that execs when it is told to, a holder of its memory, and the test, which has inherited nothing.
class OwnerThatExecs : public ::testing::Test {
 protected:
  /// It writes a handle into `owned`.
  void start_owner(const std::function<void()>& body) {
    owner.emplace([body] {
      body();
      become_another_program();
    });
  }
  /// It writes what it makes of that handle into `held`.
  void start_holder(const std::function<void()>& body) {
    holder.emplace([this, body] {
      body();
      held->serve_until(kEnd);
    });
  }
  void share_one() {
    const Tensor tensor = numbers(1000);
    owned->write(share(tensor).to_text());
    owned->reach(2);
  }
  void hold_one() {
    static Tensor tensor;  // until the end
    tensor = open(Handle::from_text(owned->read()));
    held->write(share(tensor).to_text());
  }
  void exec_owner() {
    held->reach(1);
    owned->step = 2;
    expect_exec();
  }
  void expect_exec() {
    EXPECT_TRUE(eventually([this] { return process_name(owner->pid()) == "sleep"; }));
  }
  void TearDown() override {
    EXPECT_FALSE(owner->has_ended()) << "it was to live as another program";
    held->step = kEnd;
    if (holder) {
      EXPECT_EQ(holder->join(), 0);
    }
  }

  const Watchdog watchdog;
  Shared<Note> owned, held;
  std::optional<Child> owner, holder;
};

TEST_F(OwnerThatExecs, ATensorThatABorrowerHoldsIsOpenedByANewProcess) {
  start_owner([this] { share_one(); });
  start_holder([this] { hold_one(); });
  exec_owner();
  EXPECT_EQ(element(open(Handle::from_text(held->text)), 999), 999);
}

/// A process that gets it now has a connection to the owner that has ended. It cannot ask whether the block is still
/// held.
TEST_F(OwnerThatExecs, ATensorThatItHadFreedIsOpenedByWhoHasBorrowedAnother) {
  start_owner([this] {
    const Tensor other = numbers(10, 7);
    Tensor tensor = numbers(1000);
    owned->write(share(tensor).to_text());
    held->reach(1);
    tensor.release();
    owned->write(share(other).to_text(), 2);
    owned->reach(3);
  });
  start_holder([this] { hold_one(); });
  const Tensor other = open(Handle::from_text(owned->read(2)));
  owned->step = 3;
  expect_exec();
  EXPECT_EQ(element(open(Handle::from_text(held->text)), 999), 999);
  EXPECT_EQ(element(other, 9), 16);
}

TEST_F(OwnerThatExecs, WhatAForkedChildHasInheritedIsOpenedByANewProcess) {
  Shared<Note> inherited;
  start_owner([&] {
    const Tensor tensor = numbers(1000);
    const Handle handle = share(tensor);
    if (fork() == 0) {
      alarm(60);
      inherited->write(share(tensor).to_text());
      inherited->serve_until(kEnd);
      _exit(0);
    }
    inherited->reach(1);
  });
  const std::string text = inherited->read();
  expect_exec();
  EXPECT_EQ(element(open(Handle::from_text(text)), 999), 999);
  inherited->step = kEnd;
}

/// It has a connection to its parent, too.
TEST_F(OwnerThatExecs, WhatItHadFreedAndAForkedChildHasInheritedIsOpenedByThatChild) {
  Shared<Note> inherited;
  start_owner([&] {
    const Tensor other = numbers(10, 7);
    Tensor tensor = numbers(1000);
    const Handle handle = share(other);
    if (fork() == 0) {
      alarm(60);
      const Tensor opened = open(handle);
      const std::string text = share(tensor).to_text();
      inherited->step = 1;
      inherited->reach(2);
      if (element(open(Handle::from_text(text)), 999) == 999) inherited->step = 3;
      _exit(0);
    }
    inherited->reach(1);
    tensor.release();
  });
  expect_exec();
  inherited->step = 2;
  inherited->reach(3);
}

TEST_F(OwnerThatExecs, AQueueThatItHasCreatedIsConnectedToByANewProcess) {
  start_owner([this] {
    const Queue queue = Queue::create();
    owned->write(queue.handle().to_text());
    owned->reach(2);
  });
  start_holder([this] {
    Queue queue = Queue::connect(Handle::from_text(owned->read()));
    held->write(queue.handle().to_text());
    queue.put(numbers(1000));
    held->serve_until(kEnd);
  });
  exec_owner();
  Queue queue = Queue::connect(Handle::from_text(held->text));
  const auto tensor = queue.try_get_tensor(10s);
  ASSERT_TRUE(tensor);
  EXPECT_EQ(element(*tensor, 999), 999);
}

/// An item too long for the queue lies in a block of its putter.
TEST_F(OwnerThatExecs, ALongItemThatItHasPutArrivesAtANewProcess) {
  start_holder([this] {
    const Queue queue = Queue::create();
    owned->write(queue.handle().to_text());
    held->step = 1;
    held->serve_until(kEnd);
  });
  Shared<Note> put;
  start_owner([&] {
    Queue queue = Queue::connect(Handle::from_text(owned->read()));
    queue.put(Message{0, Bytes(5000), {numbers(1000)}});
    put->step = 1;
    owned->reach(2);
  });
  const std::string text = owned->read();
  put->reach(1);
  exec_owner();
  Queue queue = Queue::connect(Handle::from_text(text));
  const auto message = queue.try_get(10s);
  ASSERT_TRUE(message);
  EXPECT_EQ(element(message->tensors.at(0), 999), 999);
}

TEST_F(OwnerThatExecs, WhatWasBorrowedFromItIsGivenBackOnceNothingIsHeld) {
  start_owner([this] { share_one(); });
  Tensor tensor = open(Handle::from_text(owned->read()));
  held->step = 1;
  exec_owner();
  EXPECT_EQ(stats().owners, 1u);
  EXPECT_EQ(element(tensor, 999), 999);
  tensor.release();
  EXPECT_TRUE(eventually([] { return stats().owners == 0; }));
}

TEST_F(OwnerThatExecs, ADepositOfItIsKeptUntilItsItemIsTakenAndNoLonger) {
  Shared<Note> put;
  start_owner([&] {
    Queue queue = Queue::connect(Handle::from_text(put->read()));
    queue.put(numbers(1000));
    put->step = 2;
    owned->reach(2);
  });
  Queue queue = Queue::create();
  put->write(queue.handle().to_text());
  put->reach(2);
  held->step = 1;
  exec_owner();
  collect();
  EXPECT_EQ(stats().deposits, 1u);
  EXPECT_EQ(element(queue.get_tensor(), 999), 999);
  EXPECT_TRUE(eventually([] { return stats().deposits == 0; }));
}

}  // namespace
}  // namespace onecopy
