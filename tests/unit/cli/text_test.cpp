// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

#include <gtest/gtest.h>

namespace onecopy::cli {
namespace {

using namespace std::chrono_literals;

TEST(Text, BytesAreReadable) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes((std::uint64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(std::uint64_t{5} << 39), "2.5 TiB");
}

TEST(Text, DurationsAreReadable) {
  EXPECT_EQ(format_duration(85ns), "85 ns");
  EXPECT_EQ(format_duration(1234ns), "1.23 µs");
  EXPECT_EQ(format_duration(412us), "412 µs");
  EXPECT_EQ(format_duration(38400us), "38.4 ms");
  EXPECT_EQ(format_duration(2100ms), "2.1 s");
}

TEST(Text, LongNamesLoseTheirMiddle) {
  EXPECT_EQ(shorten("short", 8), "short");
  EXPECT_EQ(shorten("model.layers.0.weight", 9), "mode…ight");
}

TEST(Text, IsBrokenBetweenWordsOnly) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(wrap("tried this and that", 10), (Lines{"tried this", "and that"}));
  EXPECT_EQ(wrap("µs µs µs", 5), (Lines{"µs µs", "µs"}));
  EXPECT_EQ(wrap("see /proc/self/limits", 10), (Lines{"see", "/proc/self/limits"}));
  EXPECT_EQ(wrap("", 10), Lines{""});
}

TEST(Text, ACommandToPasteIsNotBroken) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(wrap("Root may try: `echo within_size > /sys/x` or no", 16),
            (Lines{"Root may try:", "`echo within_size > /sys/x`", "or no"}));
}

TEST(Text, LongLinesOfHelpContinueBelowTheirDescription) {
  EXPECT_EQ(wrap_help("  --every SECONDS  Interval between two samples\n", 36),
            "  --every SECONDS  Interval between\n"
            "                   two samples\n");
  EXPECT_EQ(wrap_help("A paragraph whose first line is too\nlong goes on.\n", 20),
            "A paragraph whose\nfirst line is too\nlong goes on.\n");
  EXPECT_EQ(wrap_help("Examples:\n  onecopy load --device cuda:0 FILE\n", 20),
            "Examples:\n  onecopy load --device cuda:0 FILE\n");
}

TEST(Text, ColumnsLineUpAlsoBesideCharactersOfSeveralBytes) {
  Table table({{"what"}, {"n", Align::right}});
  table.add({"µs", "7"});
  table.add({"plain", "12"});
  EXPECT_EQ(table.str(),
            "what    n\n"
            "µs      7\n"
            "plain  12\n");
}

TEST(Text, ControlCharactersAndBrokenUtf8AreEscaped) {
  EXPECT_EQ(escaped("train µ€😀.py"), "train µ€😀.py");
  EXPECT_EQ(escaped("a\033[1mb\n\x7f"), "a\\x1b[1mb\\x0a\\x7f");
  EXPECT_EQ(escaped("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(escaped("\xc2\x9b"), "\\xc2\\x9b") << "a control character of two bytes";
}

TEST(Text, AColumnThatShrinksMakesLinesFit) {
  Table table({{"name", Align::left, true}, {"n", Align::right}});
  table.add({std::string(40, 'a') + "zz", "7"});
  EXPECT_EQ(table.str(20),
            "name               n\n"
            "aaaaaaaa…aaaaaazz  7\n");
  EXPECT_EQ(table.str(3), table.str(15)) << "no column is shorter than 12";
  EXPECT_NE(table.str().find(std::string(40, 'a')), std::string::npos);
}

}  // namespace
}  // namespace onecopy::cli
