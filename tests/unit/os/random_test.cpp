// SPDX-License-Identifier: Apache-2.0
#include "os/random.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

#include "support/child.h"

namespace onecopy {
namespace {

using Id = std::array<std::byte, 16>;

Id make_id() {
  Id id;
  random_bytes(id);
  return id;
}

TEST(Random, NeverGivesTheSameTwice) {
  std::set<Id> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(make_id());
  EXPECT_EQ(ids.size(), 1000u);
}

TEST(Random, FillsLargeBuffersToTheEnd) {
  std::vector<std::byte> bytes(1 << 20);
  random_bytes(bytes);
  const std::set<std::byte> tail(bytes.end() - 4096, bytes.end());
  EXPECT_GT(tail.size(), 200u);
}

TEST(Random, DiffersBetweenParentAndForkedChild) {
  const testing::Shared<Id> from_child;
  testing::Child child([&] { *from_child = make_id(); });
  const Id own = make_id();
  EXPECT_EQ(child.join(), 0);
  EXPECT_NE(own, *from_child);
  EXPECT_NE(*from_child, Id{});
}

}  // namespace
}  // namespace onecopy
