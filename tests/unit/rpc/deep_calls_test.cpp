// SPDX-License-Identifier: Apache-2.0
// Calls that wait for each other, with fewer threads than calls.
#include <gtest/gtest.h>

#include <array>

#include "support/watchdog.h"
#include "unit/rpc/meeting.h"

namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;
using testing::Watchdog;

/// Two agents, of which each calls the other until a number is 0.
struct Pair {
  Agent one, two;

  explicit Pair(std::size_t max_workers)
      : one({.name = "one", .number = 1, .max_workers = max_workers}),
        two({.name = "two", .number = 2, .max_workers = max_workers}) {
    one.join(two.address());
    two.join(one.address());
  }
  /// Defines functions that use so much of their stack.
  template <std::size_t kStackBytes>
  void define() {
    const auto define_in = [&](Agent& agent, const char* other) {
      agent.define("count", [&agent, other](Values&& values) {
        std::array<volatile char, kStackBytes> used;
        used.back() = 1;
        const std::int64_t left = number_of(values);
        if (left == 0) return number(0);
        return number(number_of(agent.call(other, "count", number(left - 1))) + used.back());
      });
    };
    define_in(one, "two");
    define_in(two, "one");
  }
};

TEST(CallsThatWaitForEachOther, NeedNoMoreThreadsThanTheLimit) {
  Watchdog watchdog;
  for (const std::size_t max_workers : {1, 4}) {
    Pair pair(max_workers);
    pair.define<1>();
    EXPECT_EQ(number_of(pair.one.call("two", "count", number(200))), 200);
  }
}

/// A thread nests functions in half of its stack. With functions that use much of it, more threads are started.
TEST(CallsThatWaitForEachOther, GoOnWhenTheStacksOfAllThreadsAreUsed) {
  Watchdog watchdog;
  Pair pair(1);
  pair.define<1 << 20>();
  EXPECT_EQ(number_of(pair.one.call("two", "count", number(40))), 40);
}

}  // namespace
}  // namespace onecopy::rpc
