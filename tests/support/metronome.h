// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string_view>

#include "core/point.h"
#include "os/event_loop.h"
#include "share/session.h"
#include "support/eventually.h"

namespace onecopy::testing {

/// A timer that runs every 20 ms on its own thread, and so measures time at the pace of the machine.
class Metronome {
 public:
  explicit Metronome(std::function<void()> at_each = [] {}) {
    timer_.emplace(loop_, [this, at_each] {
      at_each();
      ++beats_;
      return Timer::kSoon;
    });
    timer_->request();
  }
  void reach(int beats) {
    EXPECT_TRUE(eventually([&] { return beats_ >= beats; }));
  }

 private:
  std::atomic<int> beats_{0};
  EventLoop loop_;
  std::optional<Timer> timer_;
};

/// Returns how often this process's watch thread looks for work while the metronome ticks 60 times. On a starved
/// machine both are delayed alike.
inline int looks_in_a_while() {
  static std::atomic<int> looks;
  looks = 0;  // counts this process's session only, since the metronome is another loop
  point_hook = [](const char* name) noexcept {
    Session* const here = Session::existing();
    if (std::string_view(name) == "loop.pass" && here && here->loop().runs_here()) ++looks;
  };
  Metronome().reach(60);
  point_hook = nullptr;
  return looks;
}

/// Returns whether the watch thread looks seldom in some period. Other tests may wake it, since they list all owners.
inline bool comes_to_look_seldom() {
  for (int i = 0; i < 10; ++i)
    if (looks_in_a_while() < 45) return true;
  return false;
}

}  // namespace onecopy::testing
