// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace onecopy::cli {

/// Runs up to that many rounds, and returns how many: about as many as fit into a tenth of a second.
template <class Rounds>
int rounds_in_time(int most, Rounds&& rounds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(100);
  const int at_once = std::max(most / 100, 1);
  int done = 0;
  do {
    rounds(at_once);
    done += at_once;
  } while (done < most && Clock::now() < end);
  return std::min(done, most);
}

/// Median time of one round, in nanoseconds: `rounds(n)` does n of them, several times over. If a round takes long,
/// as on busy processors, there are fewer: a few seconds at most in all.
template <class Rounds>
double median_ns(std::size_t samples, int rounds_per_sample, Rounds&& rounds) {
  using Clock = std::chrono::steady_clock;
  const int enough = rounds_in_time(rounds_per_sample, rounds);  // warm
  const auto end = Clock::now() + std::chrono::seconds(2);
  std::vector<double> times;
  do {
    const auto start = Clock::now();
    rounds(enough);
    times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / enough);
  } while (times.size() < samples && Clock::now() < end);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace onecopy::cli
