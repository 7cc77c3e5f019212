// SPDX-License-Identifier: Apache-2.0
// In a user namespace, the kernel reports all users that it does not map as one: the overflow uid. A process that runs
// under this uid there must not take all users of the host for its own.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <functional>

#include "onecopy/channel/queue.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/process.h"
#include "os/unix_socket.h"
#include "share/borrower/broker_client.h"
#include "share/format/process_name.h"
#include "share/format/wire.h"
#include "support/child.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "support/user_namespace.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::element;
using testing::eventually;
using testing::expect_refusal;
using testing::kNobody;
using testing::Note;
using testing::numbers;
using testing::Shared;
using namespace std::chrono_literals;

/// Users of the host that no other test has, which may run at the same time. Made by the test's own process.
const unsigned kOneUser = 0x10000000U + static_cast<unsigned>(::getpid());
const unsigned kOtherUser = 0x10000000U + kOneUser;

class UserNamespaces : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, who can become another user";
    Child trial([] { ::_exit(::unshare(CLONE_NEWUSER) == 0 ? 0 : 1); });
    if (trial.join() != 0) GTEST_SKIP() << "wants a kernel with user namespaces";
  }
  /// Runs `body` as a user of the host that is nobody in its namespace.
  static Child nobody(unsigned user, const std::function<void()>& body) {
    return Child([user, body] {
      ASSERT_EQ(testing::try_become_nobody(user), "");
      body();
    });
  }
  /// Shares a tensor of sevens, until step 9.
  Child owner() {
    return nobody(kOneUser, [this] {
      const Tensor tensor = numbers(1000, 7);
      note_->write(share(tensor).to_text());
      note_->serve_until(9);
      EXPECT_EQ(element(tensor, 0), 7);
    });
  }

  Shared<Note> note_;
};

TEST_F(UserNamespaces, TheOverflowUidIsNotAUser) {
  Child process = owner();
  Child stranger = nobody(kOtherUser, [this] {
    const Handle handle = Handle::from_text(note_->read());
    ASSERT_EQ(geteuid(), kNobody);
    expect_refusal(ErrorCode::other_user, {"uid 65534 here, as this process has", "uid_map"},
                   [&] { open(handle); });
    EXPECT_TRUE(list_owners().empty());
  });
  EXPECT_EQ(stranger.join(), 0);
  note_->step = 9;
  EXPECT_EQ(process.join(), 0);
}

/// A stranger that does not look at its peer learns nothing.
TEST_F(UserNamespaces, AnOwnerClosesConnectionsOfTheOverflowUid) {
  Child process = owner();
  Child stranger = nobody(kOtherUser, [this] {
    const ProcessId called = Handle::from_text(note_->read()).fields().owner;
    UnixSocket socket = UnixSocket::connect(socket_name(public_name(called)), 20s);
    expect_refusal(ErrorCode::peer_died, {}, [&] {
      socket.send(wire::pack(peer::Hello{}), {}, 20s);
      socket.receive(20s);
    });
  });
  EXPECT_EQ(stranger.join(), 0);
  note_->step = 9;
  EXPECT_EQ(process.join(), 0);
}

TEST_F(UserNamespaces, OneUserSharesWithItselfUnderTheOverflowUid) {
  Child process = owner();
  Child elsewhere = nobody(kOneUser, [this] {
    const Handle handle = Handle::from_text(note_->read());
    EXPECT_EQ(element(open(handle), 999), 1006);
    Child here([&] { EXPECT_EQ(element(open(handle), 999), 1006); });
    EXPECT_EQ(here.join(), 0);
    EXPECT_EQ(list_owners().size(), 1u);
  });
  EXPECT_EQ(elsewhere.join(), 0);
  note_->step = 9;
  EXPECT_EQ(process.join(), 0);
}

/// A process may not look into /proc for the program of a process in another user namespace.
TEST_F(UserNamespaces, WhatAnOwnerLeftThatHasExecedIsOpenedFromItsHolder) {
  Shared<Note> held;
  Child process = nobody(kOneUser, [this] {
    const Queue queue = Queue::create();
    note_->write(queue.handle().to_text());
    note_->serve_until(2);
    execlp("sleep", "sleep", "600", nullptr);
  });
  Child holder = nobody(kOneUser, [&] {
    Queue queue = Queue::connect(Handle::from_text(note_->read()));
    held->write(queue.handle().to_text());
    queue.put(numbers(1000, 7));
    held->serve_until(9);
  });
  held->reach(1);
  note_->step = 2;
  EXPECT_TRUE(eventually([&] { return process_name(process.pid()) == "sleep"; }));
  Child another = nobody(kOneUser, [&] {
    Queue queue = Queue::connect(Handle::from_text(held->read()));
    const auto tensor = queue.try_get_tensor(10s);
    ASSERT_TRUE(tensor);
    EXPECT_EQ(element(*tensor, 999), 1006);
  });
  EXPECT_EQ(another.join(), 0);
  held->step = 9;
  EXPECT_EQ(holder.join(), 0);
  EXPECT_FALSE(process.has_ended()) << "it was to live as another program";
}

}  // namespace
}  // namespace onecopy
