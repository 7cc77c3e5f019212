// SPDX-License-Identifier: Apache-2.0
#include "os/read_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <vector>

#include "os/mapping.h"
#include "os/memfd.h"
#include "os/unix_socket.h"
#include "support/child.h"
#include "support/eventually.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::eventually;

/// A file of which a keeper holds an open file of its own, and a reader a mapping of another one.
class ReadLock : public ::testing::Test {
 protected:
  /// Returns a mapping of a locked open file, whose descriptor is closed.
  Mapping read() const {
    const Fd own = reopen_read_only(file_);
    lock_for_reading(own);
    return Mapping::of(own, 4096, Access::read_only);
  }

  const Fd file_ = create_memfd("read-lock-test", 4096);
};

TEST_F(ReadLock, LastsAsLongAsAMapping) {
  EXPECT_FALSE(may_be_read(file_));
  std::optional<Mapping> mapping = read();
  EXPECT_TRUE(may_be_read(file_));
  mapping.reset();
  EXPECT_FALSE(may_be_read(file_));
}

TEST_F(ReadLock, CountsInAForkedChildUntilItIsKilled) {
  std::optional<Mapping> mapping = read();
  Child child([] { ::pause(); });
  mapping.reset();
  EXPECT_TRUE(may_be_read(file_));
  child.kill(SIGKILL);
  child.join();
  EXPECT_FALSE(may_be_read(file_));
}

TEST_F(ReadLock, OfAStoppedProcessIsSeen) {
  Child child([this] {
    const Mapping mapping = read();
    std::raise(SIGSTOP);
    ::pause();
  });
  EXPECT_TRUE(eventually([&] { return may_be_read(file_); }));
  child.kill(SIGKILL);
  child.join();
  EXPECT_FALSE(may_be_read(file_));
}

TEST_F(ReadLock, TravelsThroughASocketAndIsLostWithTheMessage) {
  auto [ours, theirs] = UnixSocket::pair();
  {
    const Fd own = reopen_read_only(file_);
    lock_for_reading(own);
    const int number = own.get();
    const std::byte byte{1};
    ASSERT_TRUE(ours.try_send({&byte, 1}, {&number, 1}));
  }
  EXPECT_TRUE(may_be_read(file_));
  theirs = UnixSocket();
  EXPECT_FALSE(may_be_read(file_));
}

TEST_F(ReadLock, IsNotSeenByTheOpenFileThatHasIt) {
  lock_for_reading(file_);
  EXPECT_FALSE(may_be_read(file_));
  EXPECT_TRUE(may_be_read(reopen_read_only(file_)));
}

TEST_F(ReadLock, CannotBeDeniedForAClosedDescriptor) { EXPECT_TRUE(may_be_read(Fd())); }

TEST_F(ReadLock, IsCountedOncePerOpenFile) {
  EXPECT_EQ(count_read_locks(file_), 0u);
  const Mapping one = read(), other = read();
  EXPECT_EQ(count_read_locks(file_), 2u);
}

TEST_F(ReadLock, IsCountedByItsMark) {
  const Mapping plain = read();
  const Fd own = reopen_read_only(file_);
  lock_for_reading_with_mark(own);
  EXPECT_TRUE(may_be_read(file_));
  EXPECT_EQ(count_read_locks(file_), 2u);
  EXPECT_EQ(count_marked_read_locks(file_), 1u);
}

TEST_F(ReadLock, IsCountedWhileOthersComeAndGo) {
  constexpr unsigned kLasting = 300;
  std::vector<Mapping> lasting;
  for (unsigned i = 0; i < kLasting; ++i) lasting.push_back(read());
  Child child([this] {
    while (true) read();
  });
  for (int i = 0; i < 50; ++i) EXPECT_GE(count_read_locks(file_), kLasting);
  child.kill(SIGKILL);
  child.join();
  EXPECT_EQ(count_read_locks(file_), kLasting);
}

}  // namespace
}  // namespace onecopy
