// SPDX-License-Identifier: Apache-2.0
// Servers that begin as root, share memory, and then become another user, as servers of the web do.
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "support/child.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::element;
using testing::expect_refusal;
using testing::JoinedChild;
using testing::Note;
using testing::number_in;
using testing::numbers;
using testing::Shared;
using testing::Watchdog;

constexpr uid_t kUser = 65534;
constexpr uid_t kOther = 65533;

class ChangedUser : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, who can become another user";
  }
  /// Opens the handle of the note in a new process of a user.
  void as_user(uid_t user, const std::function<void(const Handle&)>& use) {
    JoinedChild([&, handle = Handle::from_text(note_->read())] {
      ASSERT_EQ(setuid(user), 0);
      use(handle);
    });
  }

  Watchdog watchdog_;
  Shared<Note> note_;
};

void open_it(const Handle& handle) { EXPECT_EQ(element(open(handle), 999), 999); }

TEST_F(ChangedUser, SharesWhatItHadAndWhatItMakesWithItsNewUser) {
  for (const bool before : {true, false}) {
    note_->step = 0;
    JoinedChild server([&] {
      const Tensor first = numbers(1000);
      const Handle listened = share(first);
      ASSERT_EQ(setuid(kUser), 0);
      const Tensor second = numbers(1000);
      note_->write((before ? listened : share(second)).to_text());
      note_->serve_until(2);
    });
    as_user(kUser, open_it);
    as_user(kUser, open_it);
    note_->step = 2;
  }
}

TEST_F(ChangedUser, IsStillClosedToOthers) {
  JoinedChild server([&] {
    const Tensor tensor = numbers(1000);
    const Handle handle = share(tensor);
    ASSERT_EQ(setuid(kUser), 0);
    note_->write(handle.to_text());
    note_->serve_until(2);
  });
  as_user(kOther, [](const Handle& handle) {
    expect_refusal(ErrorCode::other_user, {"uid 65534", "uid 65533", "one user"}, [&] { open(handle); });
  });
  note_->step = 2;
}

TEST_F(ChangedUser, LosesNoItemThatItsChildPutIntoItsQueue) {
  JoinedChild server([&] {
    Queue queue = Queue::create();
    ASSERT_EQ(setuid(kUser), 0);
    EXPECT_EQ(Child([&] { queue.put(numbers(1000, 7)); }).join(), 0);
    EXPECT_EQ(number_in(queue.get_tensor()), 7);
  });
}

/// A process that can go back, as one that opens a file in the name of a user, stays with its own user.
TEST_F(ChangedUser, IsNotFollowedForAWhile) {
  JoinedChild server([&] {
    const Tensor tensor = numbers(1000);
    const Handle handle = share(tensor);
    ASSERT_EQ(seteuid(kUser), 0);
    note_->write(handle.to_text());
    note_->reach(2);
    ASSERT_EQ(seteuid(0), 0);
    note_->step = 3;
    note_->serve_until(4);
  });
  as_user(kUser, [](const Handle& handle) {
    expect_refusal(ErrorCode::other_user, {"uid 0", "uid 65534"}, [&] { open(handle); });
  });
  note_->step = 2;
  note_->reach(3);
  open_it(Handle::from_text(note_->text));
  note_->step = 4;
}

}  // namespace
}  // namespace onecopy
