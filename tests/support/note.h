// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "support/eventually.h"

namespace onecopy::testing {

/// A text and a step counter for the processes of one test, used in a Shared<Note>. One process writes, others read.
struct Note {
  std::atomic<int> step{0};
  char text[4096] = {};

  void write(const std::string& s, int at_step = 1) {
    ASSERT_LT(s.size(), sizeof text);
    std::copy(s.begin(), s.end(), text);
    text[s.size()] = 0;
    step = at_step;
  }
  std::string read(int at_step = 1) {
    reach(at_step);
    return text;
  }
  /// Waits until the step is at least `at_step`.
  void reach(int at_step) {
    EXPECT_TRUE(eventually([&] { return step >= at_step; })) << "waiting for step " << at_step;
  }
  /// Waits for the step without a deadline, in a child that lives as long as the test needs it. The child dies with the
  /// test.
  void serve_until(int at_step) {
    while (!eventually([&] { return step >= at_step; })) {
    }
  }
};

}  // namespace onecopy::testing
