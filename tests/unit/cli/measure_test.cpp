// SPDX-License-Identifier: Apache-2.0
#include "cli/measure.h"

#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

namespace onecopy::cli {
namespace {

TEST(MedianNs, DoesFewerRoundsWhereEachTakesLong) {
  int done = 0;
  const auto slow_rounds = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      if (++done > 500) throw std::runtime_error("31,000 rounds would take minutes");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  };
  double ns = 0;
  EXPECT_NO_THROW(ns = median_ns(31, 1000, slow_rounds));
  EXPECT_GE(ns, 10e6);
}

}  // namespace
}  // namespace onecopy::cli
