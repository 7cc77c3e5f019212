// SPDX-License-Identifier: Apache-2.0
// In a user namespace, the kernel reports all users that it does not map as one: the overflow uid. A process that runs
// under this uid there must not take all users of the host for its own.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>

#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/unix_socket.h"
#include "share/borrower/dial.h"
#include "share/format/process_name.h"
#include "share/format/wire.h"
#include "support/child.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::element;
using testing::expect_refusal;
using testing::Note;
using testing::numbers;
using testing::Shared;
using namespace std::chrono_literals;

constexpr unsigned kNobody = 65534;
constexpr unsigned kOneUser = 165534, kOtherUser = 54400;  // of the host

void write_line(const std::string& file, const std::string& text) {
  EXPECT_TRUE(std::ofstream(file) << text << std::flush) << file;
}

/// A user cannot map itself to another number. So a process that is still root does it, when it is told to.
class IdMapper {
 public:
  IdMapper(int mapped, unsigned user)
      : mapper_([this, mapped, user] {
          const std::string directory = "/proc/" + std::to_string(mapped) + "/";
          const std::string map = std::to_string(kNobody) + " " + std::to_string(user) + " 1";
          note_->reach(1);
          write_line(directory + "setgroups", "deny");
          write_line(directory + "uid_map", map);
          write_line(directory + "gid_map", map);
        }) {}
  void map() {
    note_->step = 1;
    EXPECT_EQ(mapper_.join(), 0);
  }

 private:
  Shared<Note> note_;
  Child mapper_;
};

/// This process becomes a user of the host in a user namespace of its own, which shows it as uid 65534. Returns false
/// if there are no user namespaces.
bool become_nobody(unsigned user) {
  IdMapper mapper(::getpid(), user);
  EXPECT_EQ(::setgroups(0, nullptr), 0);
  EXPECT_EQ(::setresgid(user, user, user), 0);
  EXPECT_EQ(::setresuid(user, user, user), 0);
  ::prctl(PR_SET_DUMPABLE,
          1);  // else its files in /proc belong to root, and no other process may write its map
  if (::unshare(CLONE_NEWUSER) != 0) return false;
  mapper.map();
  EXPECT_EQ(::setresgid(kNobody, kNobody, kNobody), 0);
  EXPECT_EQ(::setresuid(kNobody, kNobody, kNobody), 0);
  ::prctl(PR_SET_DUMPABLE, 1);
  return true;
}

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
      ASSERT_TRUE(become_nobody(user));
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
      socket.send(wire::pack(wire::Hello{}), {}, 20s);
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

}  // namespace
}  // namespace onecopy
