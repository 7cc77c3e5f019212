// SPDX-License-Identifier: Apache-2.0
#include "support/eventually.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace onecopy::testing {
namespace {

int slowness() {
  const char* text = std::getenv("ONECOPY_TEST_SLOWNESS");
  return text ? std::max(1, std::atoi(text)) : 1;
}

}  // namespace

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline * slowness();
  std::chrono::microseconds pause{50};
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return condition();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(5000));
  }
  return true;
}

}  // namespace onecopy::testing
