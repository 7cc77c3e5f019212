// SPDX-License-Identifier: Apache-2.0
#include "cli/owner_table.h"

#include <unistd.h>

#include <sstream>

#include <gtest/gtest.h>

namespace onecopy::cli {
namespace {

OwnerInfo owner(int pid, std::uint64_t memory) {
  OwnerInfo info;
  info.pid = pid;
  info.stats.bytes_shared = memory;
  info.stats.live_bytes = memory / 2;
  info.stats.live_blocks = 3;
  return info;
}

std::vector<std::string> lines(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> all;
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

TEST(OwnerTable, ThreeHundredBlocksInAQueueAreOneLine) {
  ListedOwner listed{owner(12, 4096), "python train.py"};
  for (int i = 0; i < 300; ++i) listed.info.in_transit.push_back({1, i < 150 ? 4.0 : 9.0, "handle"});
  listed.info.in_transit.push_back({5, 600.0, "queue 7"});
  EXPECT_EQ(owner_details(listed),
            "12: python train.py\n"
            "12: 300 blocks in transit for 4 s to 9 s (handle)\n"
            "12: 5 blocks in transit for 10 min (queue 7)\n");
}

TEST(OwnerTable, MostMemoryComesFirst) {
  const auto listed = sorted({owner(1, 10), owner(3, 20), owner(2, 20)});
  ASSERT_EQ(listed.size(), 3u);
  EXPECT_EQ(listed[0].info.pid, 2);
  EXPECT_EQ(listed[1].info.pid, 3);
  EXPECT_EQ(listed[2].info.pid, 1);
}

TEST(OwnerTable, EndsWithTotalsWhereThereAreSeveral) {
  const ListedOwner one{owner(1, 2048), "a"};
  const ListedOwner two{owner(2, 4096), "b"};
  EXPECT_EQ(lines(owner_table({one}, kAnyWidth)).size(), 2u);
  const auto table = lines(owner_table({one, two}, kAnyWidth));
  ASSERT_EQ(table.size(), 4u);
  EXPECT_EQ(table[0], "  pid   memory    bytes  blocks  in transit  limbo  borrowers  command");
  EXPECT_EQ(table[3], "total  6.0 KiB  3.0 KiB       6           0      0          0  2 owners");
}

TEST(OwnerTable, CommandLinesAreCutToTheWidth) {
  const ListedOwner listed{owner(1, 2048), std::string(300, 'x')};
  for (const std::string& line : lines(owner_table({listed}, 90))) EXPECT_LE(line.size(), 92u) << line;
}

TEST(OwnerTable, TextOfOthersIsEscaped) {
  ListedOwner listed{owner(12, 4096), "python"};
  listed.info.borrowers = {{7, "\033[2Jevil\n", 1}};
  EXPECT_EQ(lines(owner_details(listed)).back(), "12: 7 (\\x1b[2Jevil\\x0a) borrows 1 block");
}

TEST(OwnerTable, AProcessIsNamedByItsCommandLine) {
  const std::string own = command_line(::getpid());
  EXPECT_NE(own.find("cli_tests"), std::string::npos) << own;
  EXPECT_EQ(command_line(-1), "");
  EXPECT_EQ(sorted({owner(-1, 0)}).front().command, "[]");
}

TEST(OwnerTable, WhatHasNeitherMemoryNorBlocksSharesNothing) {
  OwnerInfo info;
  EXPECT_FALSE(shares_something(info));
  info.stats.limbo = 1;
  EXPECT_TRUE(shares_something(info));
}

}  // namespace
}  // namespace onecopy::cli
