// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "command_process.h"
#include "support/watchdog.h"

namespace onecopy::testing {
namespace {

template <class T>
std::string bytes_of(std::initializer_list<T> values) {
  std::string bytes;
  for (T value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  return bytes;
}

/// A file with two tensors: counts = int32 [1, 2, 3], weight = float32 [[0.5, 1.5], [2, -1]].
std::string two_tensors() {
  return safetensors_bytes(R"({"counts":{"dtype":"I32","shape":[3],"data_offsets":[0,12]},)"
                           R"("weight":{"dtype":"F32","shape":[2,2],"data_offsets":[12,28]}})",
                           bytes_of<int>({1, 2, 3}) + bytes_of<float>({0.5F, 1.5F, 2.0F, -1.0F}));
}

class ShareAndOpen : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  std::string make_file(const std::string& name, const std::string& bytes) const {
    write_file(path(name), bytes);
    return path(name);
  }

 private:
  Watchdog watchdog_{std::chrono::seconds(110)};
  TemporaryDirectory directory_;
};

TEST_F(ShareAndOpen, TheHandleIsAllThatShareWritesOnStdout) {
  CommandProcess share({"share", make_file("two.safetensors", two_tensors())});
  EXPECT_TRUE(contains(share.first_line(), "onecopy:"));
  EXPECT_EQ(share.out(), share.first_line() + "\n");
}

TEST_F(ShareAndOpen, AnUnrelatedProcessOpensTheTextOfTheHandle) {
  CommandProcess share({"share", make_file("two.safetensors", two_tensors())});
  const Outcome open = run_command({"open", share.first_line(), "--format", "json"});
  ASSERT_EQ(open.status, 0) << open.err;
  const auto tensors = nlohmann::json::parse(open.out).at("tensors");
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].at("name"), "counts");
  EXPECT_EQ(tensors[0].at("dtype"), "int32");
  EXPECT_EQ(tensors[1].at("shape"), nlohmann::json({2, 2}));
}

TEST_F(ShareAndOpen, AMinusMeansTheHandleIsOnStdin) {
  CommandProcess share({"share", make_file("two.safetensors", two_tensors())});
  const Outcome open = run_command({"open", "-"}, share.first_line() + "\n");
  EXPECT_EQ(open.status, 0) << open.err;
  EXPECT_TRUE(contains(open.out, "weight"));
  EXPECT_TRUE(contains(open.out, "[2, 2]"));
}

TEST_F(ShareAndOpen, WhatOpenWritesOutIsTheSameFileAgain) {
  CommandProcess share({"share", make_file("two.safetensors", two_tensors())});
  ASSERT_EQ(run_command({"open", share.first_line(), "--out", path("out.safetensors")}).status, 0);
  EXPECT_TRUE(read_file(path("out.safetensors"))
                  .ends_with(bytes_of<int>({1, 2, 3}) + bytes_of<float>({0.5F, 1.5F, 2.0F, -1.0F})));
  CommandProcess again({"share", path("out.safetensors")});
  EXPECT_EQ(run_command({"open", again.first_line()}).out, run_command({"open", share.first_line()}).out);
}

TEST_F(ShareAndOpen, OpenDoesNotOverwriteAFileUnlessItIsForcedTo) {
  CommandProcess share({"share", make_file("two.safetensors", two_tensors())});
  const std::string kept = make_file("kept.safetensors", "something else");
  const Outcome open = run_command({"open", share.first_line(), "--out", kept});
  EXPECT_EQ(open.status, 1);
  EXPECT_TRUE(contains(open.err, kept + " exists already; --force overwrites it")) << open.err;
  EXPECT_EQ(read_file(kept), "something else");
  const Outcome forced = run_command({"open", share.first_line(), "--out", kept, "--force"});
  EXPECT_EQ(forced.status, 0) << forced.err;
  EXPECT_EQ(forced.out, "");  // the file says more than a table
  EXPECT_TRUE(read_file(kept).ends_with(bytes_of<float>({0.5F, 1.5F, 2.0F, -1.0F})));
}

TEST_F(ShareAndOpen, LayersAreListedInTheOrderOfTheirNumbers) {
  std::string header = "{";
  for (int layer = 11; layer >= 0; --layer)
    header += fmt::format(R"("layers.{}.w":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}}{})", layer,
                          11 - layer, 12 - layer, layer == 0 ? "}" : ",");
  CommandProcess share(
      {"share", make_file("layers.safetensors", safetensors_bytes(header, std::string(12, 'x')))});
  const Outcome open = run_command({"open", share.first_line(), "--format", "json"});
  ASSERT_EQ(open.status, 0) << open.err;
  const auto tensors = nlohmann::json::parse(open.out).at("tensors");
  ASSERT_EQ(tensors.size(), 12U);
  for (std::size_t layer = 0; layer < 12; ++layer)
    EXPECT_EQ(tensors[layer].at("name"), fmt::format("layers.{}.w", layer));
}

TEST_F(ShareAndOpen, AnNpyFileIsOneTensor) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  header.append(118 - header.size() - 1, ' ').push_back('\n');
  const std::string npy = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header;
  CommandProcess share({"share", make_file("a.npy", npy + bytes_of<float>({1, 2, 3, 4, 5, 6}))});
  const Outcome open =
      run_command({"open", share.first_line(), "--out", path("out.safetensors"), "--format", "json"});
  ASSERT_EQ(open.status, 0) << open.err;
  const auto tensor = nlohmann::json::parse(open.out).at("tensors").at(0);
  EXPECT_EQ(tensor.at("shape"), nlohmann::json({2, 3}));
  EXPECT_TRUE(read_file(path("out.safetensors")).ends_with(bytes_of<float>({1, 2, 3, 4, 5, 6})));
}

TEST_F(ShareAndOpen, ShareNamesItsBorrowersWhenItEnds) {
  CommandProcess share({"share", make_file("two.safetensors", two_tensors())});
  CommandProcess open({"open", share.first_line(), "--hold"});
  ASSERT_TRUE(open.says("Holding")) << open.err();
  share.signal(SIGINT);
  EXPECT_EQ(share.wait(), 0) << share.err();
  EXPECT_TRUE(contains(share.err(), "process " + std::to_string(open.pid())));
  open.signal(SIGTERM);
  EXPECT_EQ(open.wait(), 0) << open.err();
}

/// No process could ever open it.
TEST_F(ShareAndOpen, ShareDoesNotHoldAFileWhoseHandleIsLost) {
  CommandProcess share({"share", make_file("two.safetensors", two_tensors())}, "", {}, "/dev/full");
  EXPECT_EQ(share.wait(), 1);
  EXPECT_TRUE(contains(share.err(), "cannot write to stdout"));
}

TEST_F(ShareAndOpen, ShareSaysWhenNobodyBorrows) {
  CommandProcess share({"share", make_file("two.safetensors", two_tensors())});
  ASSERT_TRUE(contains(share.first_line(), "onecopy:"));
  share.signal(SIGTERM);
  EXPECT_EQ(share.wait(), 0);
  EXPECT_TRUE(contains(share.err(), "No process borrows"));
}

TEST_F(ShareAndOpen, GarbageInsteadOfAHandleIsAClearError) {
  for (const char* text : {"hello", "onecopy:", "onecopy:AAAA", "onecopy:$$$$", ""}) {
    const Outcome open = run_command({"open", text});
    EXPECT_EQ(open.status, 1) << text;
    EXPECT_TRUE(contains(open.err, "handle")) << text;
    EXPECT_EQ(open.out, "") << text;
  }
}

TEST_F(ShareAndOpen, AHandleThatWasNotCopiedWholeIsSaidToBeCut) {
  CommandProcess share({"share", make_file("two.safetensors", two_tensors())});
  const std::string handle = share.first_line();
  const std::string whole = std::to_string(handle.size());
  for (std::size_t lost : {1, 2, 3, 100}) {
    const std::string left = std::to_string(handle.size() - lost);
    const Outcome open = run_command({"open", handle.substr(0, handle.size() - lost)});
    EXPECT_EQ(open.status, 1);
    EXPECT_TRUE(contains(open.err, "has " + left + " characters and begins like one of " + whole));
  }
  const Outcome broken = run_command({"open", handle.substr(0, 80) + "\n  " + handle.substr(80)});
  EXPECT_TRUE(contains(broken.err, "white space at position 80"));
}

TEST_F(ShareAndOpen, AHandleWhoseOwnerHasEndedIsAClearError) {
  CommandProcess share({"share", make_file("two.safetensors", two_tensors())});
  const std::string handle = share.first_line();
  share.signal(SIGKILL);
  ASSERT_EQ(share.wait(), -SIGKILL);
  const Outcome open = run_command({"open", handle});
  EXPECT_EQ(open.status, 1);
  EXPECT_TRUE(contains(open.err, "has exited"));
}

TEST_F(ShareAndOpen, AnOutFileNamedAsOneOfNumpyIsRefused) {
  const Outcome open = run_command({"open", "onecopy:any", "--out", "copy.npy"});
  EXPECT_EQ(open.status, 1);
  EXPECT_TRUE(contains(open.err, "copy.npy")) << open.err;
  EXPECT_TRUE(contains(open.err, ".safetensors")) << open.err;
}

TEST_F(ShareAndOpen, AFileThatLiesIsRefusedWithTheReason) {
  const std::string lies = safetensors_bytes(
      R"({"x":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]}})", std::string(16, '\0'));
  const Outcome share = run_command({"share", make_file("lies.safetensors", lies)});
  EXPECT_EQ(share.status, 1);
  EXPECT_EQ(share.out, "");
  EXPECT_TRUE(contains(share.err, "lies.safetensors"));
}

TEST_F(ShareAndOpen, AMissingFileIsRefusedByName) {
  const Outcome share = run_command({"share", path("missing.safetensors")});
  EXPECT_EQ(share.status, 1);
  EXPECT_TRUE(contains(share.err, "missing.safetensors"));
}

}  // namespace
}  // namespace onecopy::testing
