// SPDX-License-Identifier: Apache-2.0
#include "os/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "expect_error.h"
#include "support/child.h"

namespace onecopy {
namespace {

Fd open_null() { return Fd(::open("/dev/null", O_RDWR | O_CLOEXEC)); }

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

TEST(Fd, ClosesWhatItOwns) {
  int raw;
  {
    const Fd fd = open_null();
    raw = fd.get();
    EXPECT_TRUE(is_open(raw));
  }
  EXPECT_FALSE(is_open(raw));
}

TEST(Fd, MovingHandsTheDescriptorOver) {
  Fd first = open_null();
  const int raw = first.get();
  Fd second = std::move(first);
  EXPECT_FALSE(first);
  EXPECT_EQ(second.get(), raw);
  Fd third = open_null();
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_FALSE(is_open(replaced));
  EXPECT_TRUE(is_open(raw));
}

TEST(Fd, ReleaseLeavesTheDescriptorOpen) {
  Fd fd = open_null();
  const Fd taken(fd.release());
  EXPECT_FALSE(fd);
  EXPECT_TRUE(is_open(taken.get()));
}

TEST(Fd, ClosingKeepsErrno) {
  Fd fd(::dup(0));
  ::close(fd.get());  // so that the next close fails
  errno = ENOENT;
  fd.reset();
  EXPECT_EQ(errno, ENOENT);
}

TEST(Fd, DuplicateIsAnotherDescriptorClosedOnExec) {
  const Fd fd = open_null();
  const Fd copy = fd.duplicate();
  EXPECT_NE(copy.get(), fd.get());
  EXPECT_EQ(::fcntl(copy.get(), F_GETFD), FD_CLOEXEC);
}

TEST(Fd, DuplicateSaysWhatIsWrong) {
  testing::Child child([] {
    expect_error(ErrorCode::system, [] { Fd().duplicate(); });
    const Fd fd = open_null();
    const auto most = static_cast<rlim_t>(fd.get() + 1);
    const rlimit none{most, most};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    expect_error(ErrorCode::out_of_descriptors, [&] { fd.duplicate(); });
  });
  EXPECT_EQ(child.join(), 0);
}

}  // namespace
}  // namespace onecopy
