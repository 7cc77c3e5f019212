// SPDX-License-Identifier: Apache-2.0
#include "os/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <string_view>

#include "expect_error.h"
#include "support/child.h"
#include "support/temporary_directory.h"

namespace onecopy {
namespace {

ByteSpan bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(File, ReadsBackWhatWasWritten) {
  const TemporaryDirectory directory;
  const Fd fd = open_file(directory / "file", O_RDWR | O_CREAT);
  EXPECT_EQ(::fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
  write_all(fd, bytes_of("0123456789"));
  std::array<char, 4> part{};
  read_exactly(fd, std::as_writable_bytes(std::span(part)), 3);
  EXPECT_EQ(std::string_view(part.data(), 4), "3456");
  EXPECT_EQ(try_read_text(directory / "file"), "0123456789");
}

TEST(File, ReadingBehindTheEndSaysWhereItIs) {
  const TemporaryDirectory directory;
  directory.write("file", "0123456789");
  const Fd fd = open_file(directory / "file", O_RDONLY);
  std::array<std::byte, 8> part{};
  const std::string why = expect_error(ErrorCode::bad_file, [&] { read_exactly(fd, part, 5); });
  EXPECT_PRED2(contains, why, "ends at byte 10");
  EXPECT_PRED2(contains, why, "3 more bytes");
}

TEST(File, OpeningSaysWhichFileAndWhy) {
  const std::string why = expect_error(ErrorCode::system, [] { open_file("/no/such/file", O_RDONLY); });
  EXPECT_PRED2(contains, why, "/no/such/file");
  EXPECT_PRED2(contains, why, "No such file");
}

TEST(File, WritingBeyondTheLimitIsAnError) {
  testing::Child child([] {
    std::signal(SIGXFSZ, SIG_IGN);
    const TemporaryDirectory directory;
    const Fd fd = open_file(directory / "file", O_WRONLY | O_CREAT);
    const rlimit limit{100, 100};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    expect_error(ErrorCode::system, [&] { write_all(fd, Bytes(200)); });
  });
  EXPECT_EQ(child.join(), 0);
}

TEST(File, TextThatCannotBeReadIsNothing) {
  EXPECT_FALSE(try_read_text("/no/such/file"));
  EXPECT_FALSE(try_read_text("/"));
  EXPECT_EQ(try_read_text("/dev/null"), "");
}

TEST(File, TextLongerThanAnyBufferIsReadWhole) {
  const TemporaryDirectory directory;
  const std::string text(100'001, 'x');
  directory.write("file", text);
  EXPECT_EQ(try_read_text(directory / "file"), text);
}

TEST(File, PrivateDirectoriesAreMadeAndFoundAgain) {
  const TemporaryDirectory parent;
  for (int time = 0; time < 2; ++time) ensure_private_directory(parent / "own");
  struct stat status {};
  ASSERT_EQ(::stat((parent / "own").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST(File, DirectoriesThatAreNotPrivateAreRefused) {
  const TemporaryDirectory parent;
  ensure_private_directory(parent / "own");
  ASSERT_EQ(::symlink((parent / "own").c_str(), (parent / "link").c_str()), 0);
  expect_error(ErrorCode::other_user, [&] { ensure_private_directory(parent / "link"); });
  parent.write("file", "");
  expect_error(ErrorCode::other_user, [&] { ensure_private_directory(parent / "file"); });
  ASSERT_EQ(::chmod((parent / "own").c_str(), 0710), 0);
  expect_error(ErrorCode::other_user, [&] { ensure_private_directory(parent / "own"); });
  expect_error(ErrorCode::system, [&] { ensure_private_directory(parent / "a/b/c"); });
}

}  // namespace
}  // namespace onecopy
