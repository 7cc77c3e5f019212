// SPDX-License-Identifier: Apache-2.0
// Objects of one process that handles name: kept as long as any process claims them.
#include "onecopy/share/object.h"

#include <gtest/gtest.h>

#include <thread>

#include "onecopy/share/share.h"
#include "support/child.h"
#include "support/note.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::eventually;
using testing::JoinedChild;
using testing::Note;
using testing::Shared;
using testing::Watchdog;

TEST(SharedObject, IsFoundByItsHandleAndGoesWithIt) {
  auto object = std::make_shared<int>(5);
  const std::weak_ptr<int> watched = object;
  {
    const Handle handle = share_object(std::move(object));
    EXPECT_EQ(shared_object(handle), watched.lock());
    const Handle written = Handle::from_text(handle.to_text());
    EXPECT_EQ(shared_object(written), watched.lock());
  }
  EXPECT_TRUE(eventually([&] { return watched.expired(); }));
}

TEST(SharedObject, IsNotFoundByAHandleThatOutlivesIt) {
  const Handle written = Handle::from_text(share_object(std::make_shared<int>(5)).to_text());
  EXPECT_TRUE(eventually([&] { return shared_object(written) == nullptr; }));
  const Handle next =
      share_object(std::make_shared<int>(6));  // the block may come again, its generation does not
  EXPECT_EQ(shared_object(written), nullptr);
  EXPECT_NE(shared_object(next), nullptr);
}

TEST(SharedObject, AnEmptyPointerIsRefused) {
  testing::expect_refusal(ErrorCode::invalid_argument, {"no object"}, [] { share_object(nullptr); });
}

TEST(SharedObject, MayCallBackWhenItGoes) {
  struct Speaks {
    explicit Speaks(Handle text) : written(std::move(text)) {}
    ~Speaks() { EXPECT_EQ(shared_object(written), nullptr); }
    const Handle written;
  };
  const Handle other = Handle::from_text(share_object(std::make_shared<int>(1)).to_text());
  auto object = std::make_shared<Speaks>(other);
  const std::weak_ptr<Speaks> watched = object;
  share_object(std::move(object));
  EXPECT_TRUE(eventually([&] { return watched.expired(); }));
}

TEST(SharedObject, LivesAsLongAsAnotherProcessClaimsIt) {
  const Watchdog watchdog;
  Shared<Note> note;
  auto object = std::make_shared<int>(5);
  const std::weak_ptr<int> watched = object;
  JoinedChild user([&] {
    note->reach(1);
    Tensor claim = open(Handle::from_text(note->read()));
    EXPECT_EQ(shared_object(Handle::from_text(note->read())), nullptr) << "it is another process's";
    note->step = 2;
    note->reach(3);
    claim.release();
    note->step = 4;
    note->reach(5);
  });
  {
    const Handle handle = share_object(std::move(object));
    note->write(handle.to_text());
    note->step = 1;
    note->reach(2);
  }
  for (int i = 0; i < 100; ++i)
    share_object(std::make_shared<int>(i));  // would end the first, were it free
  EXPECT_FALSE(watched.expired());
  note->step = 3;
  EXPECT_TRUE(eventually([&] { return watched.expired(); }));
  note->reach(4);
  note->step = 5;
}

TEST(SharedObject, GoesWhenTheProcessThatClaimedItIsKilled) {
  const Watchdog watchdog;
  Shared<Note> note;
  auto object = std::make_shared<int>(5);
  const std::weak_ptr<int> watched = object;
  Child user([&] {
    note->reach(1);
    const Tensor claim = open(Handle::from_text(note->read()));
    note->step = 2;
    note->reach(3);
  });
  {
    const Handle handle = share_object(std::move(object));
    note->write(handle.to_text());
    note->step = 1;
    note->reach(2);
  }
  EXPECT_FALSE(watched.expired());
  user.kill();
  EXPECT_TRUE(eventually([&] { return watched.expired(); }));
}

}  // namespace
}  // namespace onecopy
