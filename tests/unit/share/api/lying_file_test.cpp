// SPDX-License-Identifier: Apache-2.0
// safetensors files that lie, through the whole of loading: each its own reason, and no memory or
// descriptor stays behind. tests/unit/memory/safetensors_test.cpp has the parser's many more.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "onecopy/share/load.h"
#include "onecopy/share/share.h"
#include "support/footprint.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::expect_refusal;
using testing::expect_soon;
using testing::Footprint;

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + rest;
}

std::string file(const std::string& header, std::size_t data) {
  return with_length(header.size(), header + std::string(data, 'd'));
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& range) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + range +
         "}";
}

struct Lie {
  const char* name;
  std::string content;
  const char* says;
};

class LyingFile : public ::testing::TestWithParam<Lie> {
 protected:
  LyingFile() { EXPECT_NE(::mkdtemp(directory_.data()), nullptr); }
  ~LyingFile() override { std::filesystem::remove_all(directory_); }

  std::string directory_ = ::testing::TempDir() + "/onecopy-lies-XXXXXX";
};

TEST_P(LyingFile, IsRefusedWithItsReasonAndNothingStays) {
  const std::string path = directory_ + "/weights.safetensors";
  std::ofstream(path, std::ios::binary) << GetParam().content;
  empty(Layout(DType::u8, {1}));  // so that objects made once are there
  const Footprint before = Footprint::unchanging();
  for (int i = 0; i < 3; ++i)
    expect_refusal(ErrorCode::bad_file, {path.c_str(), GetParam().says}, [&] { load_safetensors(path); });
  expect_soon(before);
  // The next file is read as if nothing had been.
  std::ofstream(path, std::ios::binary) << file("{" + tensor("t", "U8", "[4]", "[0,4]") + "}", 4);
  EXPECT_EQ(load_safetensors(path).at(0).second.as<char>()[3], 'd');
}

const std::string kGood = tensor("t", "U8", "[4]", "[0,4]");

INSTANTIATE_TEST_SUITE_P(
    Safetensors, LyingFile,
    ::testing::Values(
        Lie{"Empty", "", "bytes"}, Lie{"ShorterThanALength", "1234567", "bytes"},
        Lie{"HeaderLongerThanTheFile", with_length(1000, "{}"), "1000"},
        Lie{"HeaderOf64Bits", with_length(~std::uint64_t{0}, "{}"), "18446744073709551615"},
        Lie{"HeaderThatIsNotJson", file("nonsense", 0), "{"},
        Lie{"OverlappingRanges", file("{" + kGood + "," + tensor("u", "U8", "[4]", "[2,6]") + "}", 6),
            "overlapping"},
        Lie{"HoleBetweenRanges", file("{" + kGood + "," + tensor("u", "U8", "[4]", "[6,10]") + "}", 10),
            "hole"},
        Lie{"RangeBeyondTheFile", file("{" + tensor("t", "U8", "[9]", "[0,9]") + "}", 4), "cut off"},
        Lie{"RangeThatWrapsAround",
            file("{" + tensor("t", "U8", "[4]", "[18446744073709551612,0]") + "}", 4), "begin"},
        Lie{"TerabytesThatAreNotThere",
            file("{" + tensor("t", "F64", "[549755813888]", "[0,4398046511104]") + "}", 8), "cut off"},
        Lie{"WrongSizeForItsDtype", file("{" + tensor("t", "F32", "[4]", "[0,4]") + "}", 4), "need 16"},
        Lie{"ShapeThatOverflows",
            file("{" + tensor("t", "F64", "[4294967296,4294967296]", "[0,0]") + "}", 0), "\"t\""},
        Lie{"UnknownDtype", file("{" + tensor("t", "F31", "[1]", "[0,4]") + "}", 4), "unknown dtype"},
        Lie{"NameTwice", file("{" + kGood + "," + kGood + "}", 4), "comes twice"},
        Lie{"NotUtf8", file("{" + tensor("\xff\xfe", "U8", "[4]", "[0,4]") + "}", 4), "not UTF-8"},
        Lie{"DataOfNobody", file("{" + kGood + "}", 5), "belong to no tensor"}),
    [](const auto& lie) { return std::string(lie.param.name); });

}  // namespace
}  // namespace onecopy
