// SPDX-License-Identifier: Apache-2.0
// Forks that meet other threads, or lack descriptors or threads. Other effects of a fork are in share_test.cpp.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "core/point.h"
#include "onecopy/channel/queue.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/process_origin.h"
#include "share/runtime/runtime.h"
#include "support/child.h"
#include "support/footprint.h"
#include "support/limits.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using testing::address_space_for;
using testing::Child;
using testing::descriptors_for;
using testing::element;
using testing::eventually;
using testing::expect_refusal;
using testing::Footprint;
using testing::JoinedChild;
using testing::kSanitized;
using testing::Limit;
using testing::Note;
using testing::numbers;
using testing::set_element;
using testing::Shared;
using testing::Watchdog;
using namespace std::chrono_literals;

constexpr const char* kSanitizersAndForks =
    "sanitizers' allocators know nothing of forks beside other threads";
constexpr const char* kSanitizerNeedsDescriptors = "sanitizers need descriptors of their own";

/// A fork that does not die with its parent. It ends with the number of failures that `body` notes.
template <class Body>
void fork_orphan(const Body& body) {
  pid_t child = -1;
  // At a limit of threads one that has been joined may still count.
  EXPECT_TRUE(eventually([&] { return (child = fork()) != -1; }));
  if (child != 0) return;
  alarm(60);
  body();
  _exit(0);
}

/// Allocates new tensors in any free memory.
void overwrite_free_memory() {
  for (int i = 0; i < 100; ++i) set_element<std::int64_t>(numbers(1000), 999, 0);
}

TEST(ForkAmongThreads, TwoAtOnce) {
  if (kSanitized) GTEST_SKIP() << kSanitizersAndForks;
  const Watchdog watchdog;
  JoinedChild parent([] {
    const Tensor tensor = numbers(1000);
    const auto fork_often = [&] {
      for (int i = 0; i < 50; ++i)
        EXPECT_EQ(Child([&] { EXPECT_EQ(element(tensor, 999), 999); }).join(), 0);
    };
    std::jthread one(fork_often);
    std::jthread other(fork_often);
  });
}

std::atomic<bool> is_asked{false};

/// The child has nothing of the question: it asks for itself.
TEST(ForkAmongThreads, WhileOneAsksAnOwnerThatIsStopped) {
  if (kSanitized) GTEST_SKIP() << kSanitizersAndForks;
  const Watchdog watchdog;
  Shared<Note> known, other;
  Child owner([&] {
    const Tensor one = numbers(1000), large = numbers(8 << 20);
    other->write(share(large).to_text());
    known->write(share(one).to_text());
    known->serve_until(2);
  });
  const Tensor one = open(Handle::from_text(known->read()));
  owner.signal(SIGSTOP);
  std::atomic<bool> is_answered{false};
  point_hook = [](const char* name) noexcept {
    if (std::string_view(name) == "conversation.asked") is_asked = true;
  };
  std::thread asker([&] {
    EXPECT_EQ(element(open(Handle::from_text(other->read())), 999), 999);
    is_answered = true;
  });
  EXPECT_TRUE(eventually([] { return is_asked.load(); }));
  point_hook = nullptr;
  Child child([&] {
    EXPECT_EQ(element(one, 999), 999);
    other->reach(2);
    EXPECT_EQ(element(open(Handle::from_text(other->text)), 999), 999);
  });
  EXPECT_FALSE(is_answered);
  owner.signal(SIGCONT);
  asker.join();
  other->step = 2;
  EXPECT_EQ(child.join(), 0);
  known->step = 2;
  EXPECT_EQ(owner.join(), 0);
}

TEST(ForkAmongThreads, WhileOneMakesTheFirstTensor) {
  if (kSanitized) GTEST_SKIP() << kSanitizersAndForks;
  const Watchdog watchdog;
  for (int i = 0; i < 60; ++i) {
    Child parent([i] {
      std::atomic<bool> go{false};
      std::jthread first([&] {
        while (!go) {
        }
        numbers(10);
      });
      go = true;
      const auto begin = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - begin < i * 5us) {  // at every instruction of it, some time
      }
      for (int n = 0; n < 3; ++n) EXPECT_EQ(Child([] { EXPECT_EQ(element(numbers(10), 9), 9); }).join(), 0);
    });
    ASSERT_EQ(parent.join(), 0);
  }
}

/// Others that this user runs would count, so it is a user of this test's own.
TEST(Fork, WithoutThreadsToBeHadGoesOnOnceThereAre) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become a user who may have two threads";
  if (kSanitized) GTEST_SKIP() << "sanitizers have threads of their own";
  const Watchdog watchdog;
  JoinedChild parent([] {
    ASSERT_EQ(setuid(static_cast<uid_t>(100'000 + getpid())), 0);
    Shared<Note> note;
    Tensor tensor = numbers(1000);
    const Tensor large = numbers(1 << 20);
    const Handle handle = share(tensor);  // with a watch thread
    Limit limit(RLIMIT_NPROC, 2);
    fork_orphan([&] {
      if (element(tensor, 999) == 999) note->step = 1;
      note->reach(2);
      limit.lift();
      const Tensor own = numbers(10);
      tensor.release();
      if (element(own, 9) == 9) note->step = 3;
    });
    note->reach(1);
    tensor.release();
    limit.lift();
    note->step = 2;
    note->reach(3);
    numbers(10);
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  });
}

/// The owner hears nothing of the child, and its parent is no more: but their common connection is still open.
TEST(Fork, WithoutDescriptorsForAPageTheChildKeepsWhatItsKilledParentBorrowed) {
  if (kSanitized) GTEST_SKIP() << kSanitizerNeedsDescriptors;
  const Watchdog watchdog;
  Shared<Note> note;
  JoinedChild owner([&] {
    Tensor tensor = numbers(1000);
    note->write(share(tensor).to_text());
    note->reach(2);
    tensor.release();
    EXPECT_EQ(stats().limbo, 1u);
    note->step = 3;
    note->reach(4);
    overwrite_free_memory();
    note->step = 5;
    note->reach(6);
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  });
  Child parent([&] {
    const Tensor tensor = open(Handle::from_text(note->read()));
    {
      Limit limit(RLIMIT_NOFILE, descriptors_for(0));
      fork_orphan([&] {
        note->reach(5);
        if (element(tensor, 999) == 999) note->step = 6;
      });
    }
    note->step = 2;
    note->reach(3);
    raise(SIGKILL);
  });
  EXPECT_EQ(parent.join(), -SIGKILL);
  note->step = 4;
}

/// The owner hangs up on a borrower whose message it could not take.
TEST(Fork, WhatAChildHasIsKeptThoughItsOwnerHadNoDescriptorsForItsPageAndItsParentHasEnded) {
  if (kSanitized) GTEST_SKIP() << kSanitizerNeedsDescriptors;
  const Watchdog watchdog;
  Shared<Note> note;
  JoinedChild owner([&] {
    Tensor tensor = numbers(1000);
    note->write(share(tensor).to_text());
    note->reach(2);
    {
      const Limit limit(RLIMIT_NOFILE, descriptors_for(0));
      note->step = 3;
      EXPECT_TRUE(eventually([] { return stats().borrowers == 0; }));
    }
    tensor.release();
    overwrite_free_memory();
    EXPECT_EQ(stats().limbo, 1u);
    note->step = 4;
    note->reach(5);
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; })) << "once the child has ended";
  });
  Child parent([&] {
    const Tensor tensor = open(Handle::from_text(note->read()));
    note->step = 2;
    note->reach(3);
    fork_orphan([&] {
      note->reach(4);
      if (element(tensor, 999) == 999) note->step = 5;
    });
    raise(SIGKILL);
  });
  EXPECT_EQ(parent.join(), -SIGKILL);
}

std::atomic<int> looks{0}, looks_in_a_tick{0}, most_in_a_tick{0};

/// Counts how often this process looks through all others.
void count_looks() {
  point_hook = [](const char* name) noexcept {
    if (std::string_view(name) == "broker.look") looks_in_a_tick = 0;
    if (std::string_view(name) != "unseen.look") return;
    ++looks;
    most_in_a_tick = std::max<int>(most_in_a_tick, ++looks_in_a_tick);
  };
}

/// An owner whose borrowers fork and die while it cannot hear of their children.
class MissedChildren : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << kSanitizerNeedsDescriptors;
  }
  /// In the owner: lends a tensor to so many borrowers and lets go of it; it has a second one.
  void lend(int borrowers) {
    count_looks();
    Tensor tensor = numbers(1000);
    other_note->write(share(other).to_text());
    note->write(share(tensor).to_text());
    note->reach(1 + borrowers);
    Footprint::settled_owner(static_cast<std::uint64_t>(borrowers));
    const Limit limit(RLIMIT_NOFILE, descriptors_for(0));
    note->step = 10;
    EXPECT_TRUE(eventually([] { return stats().borrowers == 0; }));
  }
  /// Makes the calling borrower die and leave a child. The owner has closed all connections before the first borrower
  /// dies, since it could use the descriptors of that borrower for the page of another borrower's child.
  template <class Body>
  void borrow_and_die(const Body& child, int borrowers = 1) {
    const Tensor tensor = open(Handle::from_text(note->read()));
    ++note->step;
    note->reach(10);
    fork_orphan([&] { child(tensor); });
    EXPECT_TRUE(eventually([] { return Runtime::current().peers().list().at(0)->broker().is_over(); }));
    ++other_note->step;
    other_note->reach(1 + borrowers);
    raise(SIGKILL);
  }
  Tensor open_other() { return open(Handle::from_text(other_note->read())); }

  const Watchdog watchdog;
  Shared<Note> note;
  Shared<Note> other_note;
  Tensor other;
};

TEST_F(MissedChildren, ThatHaveEndedKeepNothingThoughABorrowerCameSince) {
  JoinedChild owner([&] {
    other = numbers(10);
    lend(1);
    EXPECT_EQ(stats().limbo, 1u);
    note->step = 11;
    note->reach(12);
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
    EXPECT_EQ(stats().borrowers, 1u);
    note->step = 13;
  });
  Child borrower([&] { borrow_and_die([&](const Tensor&) { note->reach(12); }); });
  EXPECT_EQ(borrower.join(), -SIGKILL);
  JoinedChild younger([&] {
    note->reach(11);
    const Tensor tensor = open_other();
    note->step = 12;
    note->reach(13);
  });
}

/// It is a borrower by itself then, and still has its inheritance.
TEST_F(MissedChildren, ThatConnectKeepWhatTheyInherited) {
  JoinedChild owner([&] {
    other = numbers(5 << 20);  // a segment that it has to ask for
    lend(1);
    note->step = 11;
    note->reach(12);
    EXPECT_EQ(stats().borrowers, 1u);
    looks = 0;
    EXPECT_TRUE(eventually([] { return looks >= 4; }));
    overwrite_free_memory();
    EXPECT_EQ(stats().limbo, 1u);
    note->step = 13;
    note->reach(14);
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  });
  Child borrower([&] {
    borrow_and_die([&](const Tensor& tensor) {
      note->reach(11);
      const Tensor second = open_other();
      note->step = 12;
      note->reach(13);
      if (element(tensor, 999) == 999) note->step = 14;
    });
  });
  EXPECT_EQ(borrower.join(), -SIGKILL);
}

TEST_F(MissedChildren, OfTwoBorrowersAreLookedForAtOnce) {
  constexpr int kBorrowers = 2;  // with two sockets less there is room for a third one's page
  Child owner([&] {
    other = numbers(10);
    lend(kBorrowers);
    note->step = 11;
    note->reach(12);
    EXPECT_TRUE(eventually([] { return looks >= 4; }));
    EXPECT_EQ(most_in_a_tick, 1);
    note->step = 13;
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  });
  std::vector<Child> borrowers;
  for (int i = 0; i < kBorrowers; ++i)
    borrowers.emplace_back([&] { borrow_and_die([&](const Tensor&) { note->reach(13); }, kBorrowers); });
  note->reach(10);
  for (Child& borrower : borrowers) EXPECT_EQ(borrower.join(), -SIGKILL);
  note->reach(11);
  note->step = 12;
  EXPECT_EQ(owner.join(), 0);
}

TEST(Fork, AtTheLimitOfAddressesAChildKeepsWhatItsParentBorrowed) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need addresses of their own";
  const Watchdog watchdog;
  Shared<Note> note;
  JoinedChild owner([&] {
    Tensor tensor = numbers(1000);
    note->write(share(tensor).to_text());
    note->reach(2);
    tensor.release();
    overwrite_free_memory();
    EXPECT_EQ(stats().limbo, 1u);
    note->step = 3;
    note->reach(4);
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  });
  Child parent([&] {
    Tensor tensor = open(Handle::from_text(note->read()));
    Limit limit(RLIMIT_AS, address_space_for(0));
    JoinedChild child([&] {
      note->reach(3);
      EXPECT_EQ(element(tensor, 999), 999);
      limit.lift();
      EXPECT_EQ(element(numbers(10), 9), 9);
      tensor.release();
    });
    limit.lift();
    tensor.release();
    note->step = 2;
  });
  EXPECT_EQ(parent.join(), 0);
  note->step = 4;
}

/// It could not keep other processes from using them again.
TEST(Fork, AtTheLimitOfAddressesAChildOfAnOwnerOfTensorsEndsWithoutASignal) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need addresses of their own";
  JoinedChild parent([] {
    const Tensor tensor = numbers(1000);
    Limit limit(RLIMIT_AS, address_space_for(0));
    Child child([] {});
    limit.lift();
    EXPECT_GT(child.join(), 0);
    EXPECT_EQ(element(tensor, 999), 999);
    EXPECT_EQ(Child([&] { EXPECT_EQ(element(tensor, 999), 999); }).join(), 0);
  });
}

/// The child's inheritance from its parent is not all that there is.
TEST(Fork, AChildOpensWhatItsDeadParentMadeAfterwardsWithTheHelpOfWhoPassesItOn) {
  constexpr std::int64_t kMany = 8 << 20;
  const Watchdog watchdog;
  Shared<Note> note;
  Child parent([&] {
    const Tensor early = numbers(1000);
    fork_orphan([&] {
      const Tensor opened = open(Handle::from_text(note->read(3)));
      if (element(opened, kMany - 1) == kMany - 1) note->step = 4;
    });
    const Tensor late = numbers(kMany);  // in a segment of its own
    note->write(share(late).to_text());
    note->reach(2);
    raise(SIGKILL);
  });
  const Tensor late = open(Handle::from_text(note->read()));
  note->step = 2;
  EXPECT_EQ(parent.join(), -SIGKILL);
  note->write(share(late).to_text(), 3);
  note->reach(4);
}

/// A process that has inherited nothing puts a tensor of ours into a queue of ours, lets go of it, and forks.
class PutBeforeAFork : public ::testing::Test {
 protected:
  /// Puts the tensor. Called in the parent. Sets step 2.
  Queue put() {
    Queue mine = Queue::connect(Handle::from_text(note->read()));
    mine.put(open(Handle::from_text(other_note->read())));
    return mine;
  }
  void lend() {
    other_note->write(share(tensor = numbers(1000)).to_text());
    note->write(queue.emplace(Queue::create()).handle().to_text());
    note->reach(2);
  }

  const Watchdog watchdog;
  Shared<Note> note, other_note;
  Tensor tensor;
  std::optional<Queue> queue;
};

TEST_F(PutBeforeAFork, AChildHoldsNothingOfWhatItsParentHasInAQueueThatItHasLeft) {
  JoinedChild parent([this] {
    put();
    EXPECT_NE(stats().in_transit, 0u);
    EXPECT_EQ(Child([] { EXPECT_TRUE(eventually([] { return stats().leases == 0; })); }).join(), 0);
    EXPECT_NE(stats().in_transit, 0u) << "its parent still does";
    note->step = 2;
    EXPECT_TRUE(eventually([] { return stats().in_transit == 0; }));
  });
  lend();
  EXPECT_EQ(element(queue->get_tensor(), 999), 999);
}

/// It has the queue open, and never uses it.
TEST_F(PutBeforeAFork, WhatIsTakenIsFreeThoughAChildLivesOn) {
  JoinedChild parent([this] {
    const Queue mine = put();
    JoinedChild child([this] { note->reach(3); });
    note->step = 2;
  });
  lend();
  tensor.release();
  EXPECT_EQ(stats().limbo, 1u);
  EXPECT_EQ(element(queue->get_tensor(), 999), 999);
  EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  note->step = 3;
}

TEST(ProcessOrigin, WithoutDescriptorsItIsNotKnownWhetherAProcessIsGone) {
  if (kSanitized) GTEST_SKIP() << kSanitizerNeedsDescriptors;
  JoinedChild child([] {
    const ProcessOrigin self = this_process_origin();
    for (const int more : {0, 1}) {  // one is needed for the process, one for its start time
      const Limit limit(RLIMIT_NOFILE, descriptors_for(more));
      expect_refusal(ErrorCode::out_of_descriptors, {}, [&] { is_gone(self); });
    }
    EXPECT_FALSE(is_gone(self));
  });
}

}  // namespace
}  // namespace onecopy
