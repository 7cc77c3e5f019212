// SPDX-License-Identifier: Apache-2.0
// The first handle that a process opens: it calls the owner before it has anything of its own.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <string_view>
#include <thread>
#include <vector>

#include "core/point.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "share/borrower/broker_client.h"
#include "share/broker/broker.h"
#include "share/runtime/runtime.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/footprint.h"
#include "support/limits.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

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
using testing::Shared;

class FirstOpen : public ::testing::Test {
 protected:
  void TearDown() override {
    note_->step = 2;
    EXPECT_EQ(owner_.join(), 0);
  }
  /// Returns the resources of a new process after `body`, and after nothing else that uses onecopy.
  static Footprint footprint_after(const std::function<void()>& body) {
    Shared<Footprint> footprint;
    Child fresh([&] {
      EXPECT_EQ(Runtime::existing(), nullptr);
      body();
      *footprint = Footprint::unchanging();
    });
    EXPECT_EQ(fresh.join(), 0);
    return *footprint;
  }

  Shared<Note> note_;
  Child owner_{[this] {
    const Tensor tensor = empty(Layout(DType::u8, {1000}));
    note_->write(share(tensor).to_text());
    note_->reach(2);
    EXPECT_TRUE(eventually([] { return stats().borrowers == 0; }));
  }};
  const Handle handle_ = Handle::from_text(note_->read());
};

TEST_F(FirstOpen, ThatIsRefusedLeavesNoCallBehind) {
  HandleFields fields = handle_.fields();
  fields.boot[3] ^= 1;
  const Handle of_another_boot = Handle::from_bytes(encode(fields));
  const Footprint refused = footprint_after(
      [&] { expect_refusal(ErrorCode::other_boot, {"restarted"}, [&] { open(of_another_boot); }); });
  EXPECT_EQ(refused, footprint_after([] { stats(); }));
}

TEST_F(FirstOpen, ByTwoThreadsAtOnceMakesOneConnection) {
  const auto open_in = [&](int threads) {
    return footprint_after([&] {
      std::barrier start(threads);
      std::vector<std::thread> all;
      for (int i = 0; i < threads; ++i)
        all.emplace_back([&] {
          start.arrive_and_wait();
          open(handle_);
        });
      for (std::thread& thread : all) thread.join();
    });
  };
  const Footprint by_one = open_in(1);
  for (int round = 0; round < 10; ++round) EXPECT_EQ(open_in(4), by_one);
}

TEST_F(FirstOpen, OfTheWrongOwnerIsNotTakenForTheRightOne) {
  Shared<Note> other_note;
  JoinedChild other([&] {
    const Tensor tensor = empty(Layout(DType::u8, {1000}));
    tensor.as<unsigned char>()[0] = 9;
    other_note->write(share(tensor).to_text());
    other_note->reach(2);
  });
  Child borrower([&] {
    const EarlyDial to_nobody_we_need(handle_.fields().owner);
    EXPECT_EQ(open(Handle::from_text(other_note->read())).as<unsigned char>()[0], 9);
    EXPECT_EQ(open(handle_).nbytes(), 1000u);
  });
  EXPECT_EQ(borrower.join(), 0);
  other_note->step = 2;
}

/// Making its own tables may take a process longer than an owner waits for a stranger.
TEST(FirstOpenOfAll, GoesOnWhenTheOwnerHasHungUpMeanwhile) {
  Shared<Note> note;
  JoinedChild owner([&] {
    const Tensor tensor = empty(Layout(DType::u8, {1000}));
    stranger_silence_ms = 200;
    note->write(share(tensor).to_text());
    note->reach(2);
    stranger_silence_ms = 5000;  // the next call may take its time
    note->step = 3;
    note->reach(4);
  });
  Child borrower([&] {
    const Handle handle = Handle::from_text(note->read());
    const EarlyDial early(handle.fields().owner);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    note->step = 2;
    note->reach(3);
    EXPECT_EQ(open(handle).nbytes(), 1000u);
  });
  EXPECT_EQ(borrower.join(), 0);
  note->step = 4;
}

/// It is known to the owner's other threads before it has been welcomed.
TEST(FirstShare, OfATensorIsNotDisturbedByASegmentThatGoesWhileItIsOpened) {
  static Tensor large;
  static std::thread remover;
  static std::atomic<bool> removing{false};
  Shared<Note> note;
  JoinedChild owner([&] {
    const Tensor tensor = numbers(1000);
    large = numbers(8 << 20);
    point_hook = [](const char* name) noexcept {
      if (std::string_view(name) != "attach.done" || removing) return;
      remover = std::thread([] {
        large.release();
        collect();
      });
      removing = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    };
    note->write(share(tensor).to_text());
    note->reach(2);
    point_hook = nullptr;
    ASSERT_TRUE(removing);
    remover.join();
  });
  EXPECT_EQ(element(open(Handle::from_text(note->read())), 999), 999);
  note->step = 2;
}

/// Otherwise the processes that it informs would take it for dead.
TEST(FirstShare, WithoutADescriptorLeftDoesNotForgetWhenTheProcessStarted) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need descriptors of their own";
  JoinedChild owner([] {
    const Tensor tensor = empty(Layout(DType::u8, {1000}));
    {
      const Limit limit(RLIMIT_NOFILE, descriptors_for(0));
      expect_refusal(ErrorCode::out_of_descriptors, {}, [&] { share(tensor); });
    }
    share(tensor);
    EXPECT_NE(Runtime::current().ledger().origin().start_time, 0u);
    EXPECT_FALSE(is_gone(Runtime::current().ledger().origin()));
  });
}

}  // namespace
}  // namespace onecopy
