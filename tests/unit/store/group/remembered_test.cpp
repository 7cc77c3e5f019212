// SPDX-License-Identifier: Apache-2.0
// What a host of a group remembers after a restart.
#include "store/group/remembered.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "support/refusal.h"

namespace onecopy::store::group {
namespace {

using onecopy::testing::expect_refusal;

class RememberedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fmt::format("{}onecopy-remembered-test-{}", ::testing::TempDir(), ::getpid());
    std::filesystem::create_directory(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
};

TEST_F(RememberedTest, AHostRemembersAfterARestartWhatItHasShown) {
  const Current shown{3, 5, 7, Token{1, 2, 3}};
  std::string id;
  {
    Remembered before(directory_ + "/group");
    before.join("a group");
    before.note("llama \"1\"", shown);
    id = before.host_id();
  }
  const Remembered after(directory_ + "/group");
  EXPECT_EQ(after.host_id(), id);
  EXPECT_EQ(after.group_id(), "a group");
  EXPECT_EQ(after.of("llama \"1\""), shown);
  EXPECT_EQ(after.of("other").generation, 0U);
}

TEST_F(RememberedTest, ADamagedFileIsRefusedAndNotForgotten) {
  std::ofstream(directory_ + "/group") << "{\"host\": \"h\", ";
  expect_refusal(ErrorCode::bad_file, {"could show an older version"},
                 [&] { Remembered(directory_ + "/group"); });
}

TEST_F(RememberedTest, AChangeThatCannotBeWrittenIsNotRemembered) {
  Remembered remembered(directory_ + "/group");
  std::filesystem::remove_all(directory_);
  expect_refusal(ErrorCode::system, {"/group."}, [&] { remembered.note("llama", {1, 1, 1, {}}); });
  EXPECT_EQ(remembered.of("llama").generation, 0U);
}

}  // namespace
}  // namespace onecopy::store::group
