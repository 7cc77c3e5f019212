// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace onecopy::cli {

/// Median time of one round, in nanoseconds: `rounds(n)` does n of them, several times over.
template <class Rounds>
double median_ns(int samples, int rounds_per_sample, Rounds&& rounds) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  rounds(rounds_per_sample);  // warm
  for (int i = 0; i < samples; ++i) {
    const auto start = Clock::now();
    rounds(rounds_per_sample);
    times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() /
                    rounds_per_sample);
  }
  std::nth_element(times.begin(), times.begin() + samples / 2, times.end());
  return times[static_cast<std::size_t>(samples / 2)];
}

}  // namespace onecopy::cli
