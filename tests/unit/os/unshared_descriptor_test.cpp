// SPDX-License-Identifier: Apache-2.0
#include "os/unshared_descriptor.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "os/fd.h"
#include "support/child.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::eventually;

/// The two ends of a connection.
std::array<Fd, 2> connection() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

bool has_ended(const Fd& end) {
  char byte;
  return ::recv(end.get(), &byte, 1, MSG_DONTWAIT) == 0;
}

/// A child that lives until it is killed.
Child sleeper() {
  return Child([] {
    for (;;) ::pause();
  });
}

TEST(UnsharedDescriptor, EndsWithItsProcessAndNotWithAChild) {
  auto [mine, theirs] = connection();
  UnsharedDescriptor unshared(mine.get());
  Child child = sleeper();
  EXPECT_FALSE(has_ended(theirs));
  unshared = {};
  mine.reset();
  EXPECT_TRUE(eventually([&theirs = theirs] { return has_ended(theirs); }));  // when the child has begun
  child.kill();
}

TEST(UnsharedDescriptor, KeepsItsNumberTakenInAChild) {
  auto [mine, theirs] = connection();
  const UnsharedDescriptor unshared(mine.get());
  Child child([&mine = mine] {
    char byte = 0;
    EXPECT_EQ(::write(mine.get(), &byte, 1), 1);  // into nothing
    EXPECT_GT(Fd(::dup(0)).get(), mine.get());
  });
  EXPECT_EQ(child.join(), 0);
  char byte;
  EXPECT_EQ(::recv(theirs.get(), &byte, 1, MSG_DONTWAIT), -1);
}

TEST(UnsharedDescriptor, IsSharedAgainWhenItIsGone) {
  auto [mine, theirs] = connection();
  {
    UnsharedDescriptor first(mine.get());
    const UnsharedDescriptor second = std::move(first);
  }
  Child child = sleeper();
  mine.reset();
  EXPECT_FALSE(has_ended(theirs));
  child.kill();
  EXPECT_TRUE(has_ended(theirs));
}

}  // namespace
}  // namespace onecopy
