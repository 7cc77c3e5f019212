// SPDX-License-Identifier: Apache-2.0
#include "os/replacing_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <span>
#include <string>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "os/file.h"

namespace onecopy {
namespace {

ByteSpan bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

class ReplacingFileTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory_),
                                                  std::filesystem::directory_iterator()));
  }

  const std::string directory_ =
      fmt::format("{}onecopy-replacing-file-test-{}", ::testing::TempDir(), ::getpid());
  const std::string path_ = directory_ + "/file";
};

TEST_F(ReplacingFileTest, ReadersFindTheOldContentUntilTheNewOneIsComplete) {
  replace_file(path_, bytes_of("old"));
  ReplacingFile file(path_);
  write_all(file.fd(), bytes_of("new"));
  EXPECT_EQ(try_read_text(path_), "old");
  file.finish(true);
  EXPECT_EQ(try_read_text(path_), "new");
  EXPECT_EQ(files(), 1U);
}

TEST_F(ReplacingFileTest, AFileThatDoesNotTakeThePlaceIsRemoved) {
  replace_file(path_, bytes_of("old"));
  { const ReplacingFile file(path_); }
  EXPECT_EQ(try_read_text(path_), "old");
  EXPECT_EQ(files(), 1U);
  std::filesystem::create_directory(directory_ + "/directory");
  EXPECT_THROW(replace_file(directory_ + "/directory", bytes_of("new")), Error);
  EXPECT_EQ(files(), 2U);
}

TEST_F(ReplacingFileTest, OnlyThisUserMayReadTheFile) {
  replace_file(path_, bytes_of("secret"));
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
}

}  // namespace
}  // namespace onecopy
