// SPDX-License-Identifier: Apache-2.0
#include "rpc/calls.h"

#include <gtest/gtest.h>

#include <new>
#include <vector>

#include "support/child.h"
#include "support/limits.h"

namespace onecopy::rpc {
namespace {

CallRef new_call() { return std::make_shared<Call>(1, kForever); }

/// Adds one call again and again, which costs the table alone memory.
TEST(ATableOfCalls, IsWholeAfterItRanOutOfMemory) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have an operator new of their own";
  testing::Child child([] {
    Calls calls;
    const CallRef call = new_call();
    testing::Limit limit(RLIMIT_AS, testing::address_space_for(64 << 20));
    bool is_full = false;
    while (!is_full) {
      try {
        calls.add(call);
      } catch (const std::bad_alloc&) {
        is_full = true;
      }
    }
    limit.lift();
    const CallRef later = new_call();
    const std::uint64_t number = calls.add(later);
    EXPECT_EQ(calls.find(number), later);
    EXPECT_EQ(calls.take(number), later);
  });
  EXPECT_EQ(child.join(), 0);
}

}  // namespace
}  // namespace onecopy::rpc
