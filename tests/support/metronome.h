// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string_view>

#include "core/point.h"
#include "os/watch.h"
#include "support/eventually.h"

namespace onecopy::testing {

/// Ticks as often as a Watch can, and so counts its ticks.
class Metronome {
 public:
  explicit Metronome(std::function<void()> at_each = [] {}) {
    watch_.add_tick([this, at_each] {
      at_each();
      ++beats_;
      return Watch::Again::soon;
    });
    watch_.request_tick();
  }
  void reach(int beats) {
    EXPECT_TRUE(eventually([&] { return beats_ >= beats; }));
  }

 private:
  std::atomic<int> beats_{0};
  Watch watch_;
};

/// How often this process's watch thread looks what is to be done, while another would 60 times; on a starved machine
/// the two come nearer to each other.
inline int looks_in_a_while() {
  static std::atomic<int> looks;
  looks = 0;
  point_hook = [](const char* name) noexcept {
    if (std::string_view(name) == "broker.tick") ++looks;
  };
  Metronome().reach(60);
  point_hook = nullptr;
  return looks;
}

}  // namespace onecopy::testing
