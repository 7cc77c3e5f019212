// SPDX-License-Identifier: Apache-2.0
#include "os/program_mark.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>

#include "os/memfd.h"
#include "support/child.h"
#include "support/note.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::eventually;
using testing::Note;
using testing::Shared;

class AProgramMark : public ::testing::Test {
 protected:
  bool is_marked() const { return may_be_marked(file, inode); }
  /// A process that has marked the file and goes on with `body`.
  Child marker(const std::function<void()>& body) {
    Child child([this, body] {
      const ProgramMark mark(file);
      note->step = 1;
      body();
    });
    note->reach(1);
    return child;
  }
  static void sleep() {
    for (;;) ::pause();
  }
  static std::uint64_t inode_of(const Fd& fd) {
    struct stat status {};
    ::fstat(fd.get(), &status);
    return status.st_ino;
  }

  Shared<Note> note;
  const Fd file = create_memfd("onecopy-test", 4096);
  const std::uint64_t inode = inode_of(file);
};

TEST_F(AProgramMark, IsThereWhileItsObjectLives) {
  EXPECT_FALSE(is_marked());
  {
    const ProgramMark mark(file);
    EXPECT_TRUE(is_marked());
  }
  EXPECT_FALSE(is_marked());
}

TEST_F(AProgramMark, EndsWithItsProcess) {
  Child child = marker(sleep);
  EXPECT_TRUE(is_marked());
  child.kill();
  EXPECT_FALSE(is_marked());
}

TEST_F(AProgramMark, EndsWhenItsProcessExecsAnotherProgram) {
  Child child = marker([this] {
    note->reach(2);
    ::execlp("sleep", "sleep", "600", nullptr);
  });
  EXPECT_TRUE(is_marked());
  note->step = 2;
  EXPECT_TRUE(eventually([this] { return !is_marked(); }));
  EXPECT_FALSE(child.has_ended());
  child.kill();
}

TEST_F(AProgramMark, OutlastsTheDescriptorsOfItsProcess) {
  Child child = marker([this] {
    ::syscall(SYS_close_range, 3U, ~0U, 0U);
    note->step = 2;
    sleep();
  });
  note->reach(2);
  EXPECT_TRUE(is_marked());
  child.kill();
}

TEST_F(AProgramMark, IsNotInherited) {
  Shared<Note> inherited;
  Child child = marker([&] {
    Child grandchild([&] {
      inherited->step = 1;
      inherited->serve_until(2);
    });
    sleep();
  });
  inherited->reach(1);
  EXPECT_TRUE(is_marked());
  child.kill();
  EXPECT_FALSE(is_marked());
  inherited->step = 2;
}

/// The program may have closed the descriptor and opened another file under its number.
TEST_F(AProgramMark, IsNotDeniedByAnotherFile) {
  const Fd other = create_memfd("onecopy-test", 4096);
  EXPECT_TRUE(may_be_marked(other, inode));
  EXPECT_TRUE(may_be_marked(Fd(), inode));
  EXPECT_FALSE(may_be_marked(other, inode_of(other)));
}

}  // namespace
}  // namespace onecopy
