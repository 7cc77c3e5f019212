// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "explorer/explorer.h"
#include "explorer/fiber.h"

namespace onecopy::explorer {

inline void report(const char* kind, const Result& result) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  std::printf("  %s: %s.%s: %llu executions, %llu cut short, longest %llu steps\n", kind,
              test->test_suite_name(), test->name(), static_cast<unsigned long long>(result.executions),
              static_cast<unsigned long long>(result.redundant),
              static_cast<unsigned long long>(result.longest));
}

/// Virtual threads are one real thread: ThreadSanitizer has nothing to see here.
#define ONECOPY_SKIP_IF_POINTLESS() \
  if (kThreadSanitizer) GTEST_SKIP() << "virtual threads are one real thread"

/// The scenario keeps its promises in every interleaving. AddressSanitizer looks at some only.
template <class S>
void expect_always_holds(bool reduce = true) {
  ONECOPY_SKIP_IF_POINTLESS();
  const Result result =
      explore<S>({.executions = kAddressSanitizer ? 3'000u : 5'000'000u, .reduce = reduce});
  report("holds", result);
  EXPECT_EQ(result.violation, "") << result.text();
  EXPECT_TRUE(result.complete || kAddressSanitizer) << "too large to explore: " << result.text();
}

/// With its mistake, some interleaving breaks a promise, the one whose name contains `promise`.
template <class S>
void expect_broken(const std::string& promise) {
  ONECOPY_SKIP_IF_POINTLESS();
  const Result result = explore<S>();
  report("found", result);
  EXPECT_NE(result.violation.find(promise), std::string::npos)
      << "expected \"" << promise << "\": " << result.text();
}

}  // namespace onecopy::explorer
