// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace onecopy::cli {

/// Runs up to `max` rounds, as many as fit into about a tenth of a second, and returns how many.
template <class Rounds>
int rounds_in_time(int max, Rounds&& rounds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(100);
  const int at_once = std::max(max / 100, 1);
  int done = 0;
  do {
    rounds(at_once);
    done += at_once;
  } while (done < max && Clock::now() < end);
  return std::min(done, max);
}

/// Returns the median time of one round in nanoseconds. `rounds(n)` runs n rounds and is called several times; it runs
/// fewer if a round takes long, as on busy processors, so that everything takes at most a few seconds.
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
