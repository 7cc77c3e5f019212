// SPDX-License-Identifier: Apache-2.0
#include "share/visit.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "onecopy/os/memfd.h"
#include "share/leases.h"
#include "support/child.h"

namespace onecopy {
namespace {

using testing::Child;
using Visitors = Visit::Visitors;

const int kPlace = 0;
const int kOther = 0;

/// A thread that is at kPlace until it is told to leave.
class Visitor {
 public:
  Visitor() { is_there_.wait(false); }
  ~Visitor() { leave(); }
  void leave() {
    may_leave_ = true;
    may_leave_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> is_there_{false}, may_leave_{false};
  std::thread thread_{[this] {
    const Visit here(&kPlace);
    is_there_ = true;
    is_there_.notify_all();
    may_leave_.wait(false);
  }};
};

bool kernel_tells() { return Visit::visitors(&kPlace) != Visitors::unknown; }

class VisitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kernel_tells()) GTEST_SKIP() << "wants a kernel with membarrier(2), private expedited";
  }
};

TEST_F(VisitTest, OfAnotherThreadIsSeenUntilItEnds) {
  EXPECT_EQ(Visit::visitors(&kPlace), Visitors::none);
  Visitor visitor;
  EXPECT_EQ(Visit::visitors(&kPlace), Visitors::some);
  EXPECT_EQ(Visit::visitors(&kOther), Visitors::none);
  visitor.leave();
  EXPECT_EQ(Visit::visitors(&kPlace), Visitors::none);
}

TEST_F(VisitTest, OfAThreadThatAForkLeftBehindIsForgottenInTheChild) {
  Visitor visitor;
  Child child([] {
    EXPECT_EQ(Visit::visitors(&kPlace), Visitors::some);
    Visit::forget_others();
    EXPECT_EQ(Visit::visitors(&kPlace), Visitors::none);
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(VisitTest, OfManyThreadsOneAfterAnother) {
  for (int i = 0; i < 100; ++i) {
    Visitor visitor;
    EXPECT_EQ(Visit::visitors(&kPlace), Visitors::some);
  }
  EXPECT_EQ(Visit::visitors(&kPlace), Visitors::none);
}

/// An owner's block 0 under generation 7, and a borrower's page for it.
struct Owner {
  Owner() { records[0].word = make_word(7, BlockState::exported); }
  Fd table = create_memfd("onecopy-test-table", kTableBytes);
  Mapping memory = Mapping::of(table, kTableBytes, Access::read_write);
  Record* records = memory.as<Record>();
};

/// Claimers that come too late may touch memory that has been given back, which would be a crash.
TEST_F(VisitTest, LeasesThatAreClosedUnderTheirClaimersGiveTheirMemoryBackOnceTheseHaveLeft) {
  const Owner owner;
  for (int round = 0; round < 200; ++round) {
    Leases leases;
    leases.set_table(owner.table);
    leases.set_page(private_claims());
    std::atomic<bool> over{false};
    std::atomic<int> claimed{0};
    const auto claim = [&] {
      for (int n = 1; !over; ++n) {
        if (n % 2048 == 0) std::this_thread::yield();  // or it would take long until nothing is held
        if (!leases.try_claim(0, 7, [] { return false; })) continue;
        ++claimed;
        leases.release(0);
      }
      EXPECT_FALSE(leases.try_claim(0, 7, [] { return true; }));
      EXPECT_EQ(leases.count(), 0u);
    };
    std::thread one(claim), two(claim);
    while (claimed < round % 30) std::this_thread::yield();
    while (!leases.try_close()) std::this_thread::yield();
    while (!leases.try_forget()) std::this_thread::yield();
    over = true;
    one.join();
    two.join();
  }
}

}  // namespace
}  // namespace onecopy
