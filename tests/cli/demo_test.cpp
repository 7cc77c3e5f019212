// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "command_process.h"
#include "support/eventually.h"
#include "support/watchdog.h"

namespace onecopy::testing {
namespace {

bool is_empty(const std::string& directory) {
  return std::filesystem::directory_iterator(directory) == std::filesystem::directory_iterator();
}

TEST(Demo, VerifiesEveryClaimOnASmallFile) {
  const Watchdog watchdog(std::chrono::seconds(110));
  const cli::TemporaryDirectory directory;
  const std::string path = directory.path() + "/small.safetensors";
  write_file(path, safetensors_bytes(R"({"x":{"dtype":"F16","shape":[4096],"data_offsets":[0,8192]},)"
                                     R"("empty":{"dtype":"U8","shape":[0,3],"data_offsets":[8192,8192]}})",
                                     std::string(8192, '\x01')));
  const Outcome demo = run_command({"demo", path});
  EXPECT_EQ(demo.status, 0) << demo.out << demo.err;
  EXPECT_TRUE(contains(demo.out, "All of it verified."));
  EXPECT_EQ(count(demo.out, "✓"), 7u) << demo.out;
  EXPECT_FALSE(contains(demo.out, "✗"));
  EXPECT_LT(count(demo.out, "\n"), 40u);
}

TEST(Demo, ShowsTheSampleWhenNoFileIsGivenAndRemovesItAgain) {
  const Watchdog watchdog(std::chrono::seconds(110));
  const cli::TemporaryDirectory directory;
  const Outcome demo = run_command({"demo"}, "", {{"TMPDIR", directory.path()}});
  EXPECT_EQ(demo.status, 0) << demo.out << demo.err;
  EXPECT_TRUE(contains(demo.out, "bfloat16"));
  EXPECT_TRUE(contains(demo.out, "256.0 MiB"));
  EXPECT_TRUE(is_empty(directory.path()));
}

TEST(Demo, LeavesNoSampleBehindWhenItIsInterrupted) {
  const Watchdog watchdog(std::chrono::seconds(110));
  const cli::TemporaryDirectory directory;
  EXPECT_TRUE(eventually([&] {  // it may be quicker than we are
    CommandProcess demo({"demo"}, "", {{"TMPDIR", directory.path()}});
    EXPECT_TRUE(
        eventually([&] { return !is_empty(directory.path()) || contains(demo.out(), "verified"); }));
    demo.signal(SIGINT);
    const int status = demo.wait();
    EXPECT_TRUE(is_empty(directory.path()));
    return status == 1 && contains(demo.err(), "interrupted");
  }));
}

TEST(Demo, RefusesAFileWhoseHeaderLies) {
  const cli::TemporaryDirectory directory;
  const std::string path = directory.path() + "/lies.safetensors";
  write_file(path, safetensors_bytes(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                     R"("y":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                                     std::string(12, '\0')));
  const Outcome demo = run_command({"demo", path});
  EXPECT_EQ(demo.status, 1);
  EXPECT_TRUE(contains(demo.err, "onecopy: "));
  EXPECT_FALSE(contains(demo.out, "verified"));
}

TEST(Demo, RefusesAFileWithoutASingleElement) {
  const cli::TemporaryDirectory directory;
  const std::string path = directory.path() + "/empty.safetensors";
  write_file(path, safetensors_bytes("{}", ""));
  const Outcome demo = run_command({"demo", path});
  EXPECT_EQ(demo.status, 1);
  EXPECT_TRUE(contains(demo.err, "no elements"));
}

}  // namespace
}  // namespace onecopy::testing
