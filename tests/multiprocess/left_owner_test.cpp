// SPDX-License-Identifier: Apache-2.0
// A process that leaves an owner which lives: the connection ends, and a later open connects again.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <iterator>
#include <thread>
#include <vector>

#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "share/session.h"
#include "support/child.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/proc_entries.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::element;
using testing::eventually;
using testing::JoinedChild;
using testing::Note;
using testing::numbers;
using testing::set_element;
using testing::Shared;
using testing::Watchdog;

std::size_t borrowers() { return this_owner().borrowers.size(); }

TEST(AnOwnerThatIsLeft, LosesItsBorrowerWithTheLastBlockAndIsConnectedToAgain) {
  const Watchdog watchdog;
  Shared<Note> note;
  Child owner([&] {
    const Tensor tensor = numbers(1000), other = numbers(10);
    const Handle handle = share(tensor);
    note->write(handle.to_text());
    EXPECT_TRUE(eventually([&] { return note->step == 2; }));
    EXPECT_EQ(borrowers(), 1u);
    note->step = 3;
    EXPECT_TRUE(eventually([] { return borrowers() == 0; }));
    note->step = 4;
    EXPECT_TRUE(eventually([&] { return note->step == 5; }));
    EXPECT_EQ(element(tensor, 7), 70);
    EXPECT_EQ(borrowers(), 1u);
    note->step = 6;
  });
  JoinedChild borrower([&] {
    const Handle handle = Handle::from_text(note->read());
    Tensor held = open(handle);
    Session::current().leave(handle.fields().owner);
    note->step = 2;
    EXPECT_TRUE(eventually([&] { return note->step == 3; }));
    EXPECT_EQ(element(held, 999), 999);
    held.release();
    EXPECT_TRUE(eventually([&] { return note->step == 4; }));
    const Tensor again = open(handle);
    set_element<std::int64_t>(again, 7, 70);
    note->step = 5;
    EXPECT_TRUE(eventually([&] { return note->step == 6; }));
  });
  EXPECT_EQ(owner.join(), 0);
}

std::ptrdiff_t descriptors() { return std::ssize(testing::proc_entries("/proc/self/fd")); }

TEST(AnOwnerThatIsLeft, MayBeStopped) {
  const Watchdog watchdog;
  Shared<Note> note;
  Child owner([&] {
    const Tensor tensor = numbers(1000);
    note->write(share(tensor).to_text());
    EXPECT_TRUE(eventually([&] { return note->step == 3; }));
    EXPECT_TRUE(eventually([] { return borrowers() == 0; }));
    EXPECT_EQ(stats().live_blocks, 1u);
    note->step = 4;
    EXPECT_TRUE(eventually([&] { return note->step == 5; }));
  });
  const Handle handle = Handle::from_text(note->read());
  Session::current();
  const std::ptrdiff_t before = descriptors();
  const Tensor own = numbers(10);
  const std::ptrdiff_t with_own = descriptors();
  open(handle).release();
  EXPECT_GT(descriptors(), with_own);
  owner.signal(SIGSTOP);
  Session::current().leave(handle.fields().owner);
  EXPECT_TRUE(eventually([&] { return descriptors() <= with_own; })) << descriptors() << " " << before;
  EXPECT_EQ(element(own, 9), 9);
  owner.signal(SIGCONT);
  note->step = 3;
  EXPECT_TRUE(eventually([&] { return note->step == 4; }));
  EXPECT_EQ(element(open(handle), 999), 999);
  note->step = 5;
  EXPECT_EQ(owner.join(), 0);
}

/// A claim that meets an attempt to leave is made again, so that no block counts as freed.
TEST(AnOwnerThatIsLeft, RefusesNoOpenInTheMeantime) {
  const Watchdog watchdog;
  Shared<Note> note;
  Child owner([&] {
    const Tensor tensor = numbers(100);
    const Handle handle = share(tensor);
    note->write(handle.to_text());
    EXPECT_TRUE(eventually([&] { return note->step == 2; }));
    EXPECT_TRUE(eventually([] { return borrowers() == 0; }));
    EXPECT_EQ(stats().live_blocks, 1u);
  });
  JoinedChild borrower([&] {
    const Handle handle = Handle::from_text(note->read());
    std::atomic<bool> is_over = false;
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 3; ++thread)
      threads.emplace_back([&] {
        for (int i = 0; i < 100'000; ++i) EXPECT_EQ(element(open(handle), 99), 99);
      });
    std::jthread leaver([&] {
      while (!is_over) {
        Session::current().leave(handle.fields().owner);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    threads.clear();
    is_over = true;
    leaver.join();
    Session::current().leave(handle.fields().owner);
    note->step = 2;
  });
  EXPECT_EQ(owner.join(), 0);
}

}  // namespace
}  // namespace onecopy
