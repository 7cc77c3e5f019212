// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace onecopy::bench {

using Clock = std::chrono::steady_clock;

/// Returns the nanoseconds that `work` takes.
template <class Work>
double time_ns(Work&& work) {
  const auto start = Clock::now();
  std::forward<Work>(work)();
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

/// Measurements of one thing, in nanoseconds (or the caller's unit).
class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  std::size_t size() const { return values_.size(); }
  double operator[](std::size_t i) const { return values_[i]; }

  double median() const { return quantile(0.5); }
  double quantile(double q) const {
    if (values_.empty()) return 0;
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
  }

  /// Returns the median over rounds of this value divided by `limit` in the same round, since a disturbance of a round
  /// affects both.
  double ratio_to(const Samples& limit) const {
    Samples ratios;
    for (std::size_t i = 0; i < std::min(size(), limit.size()); ++i)
      if (limit[i] > 0) ratios.add(values_[i] / limit[i]);
    return ratios.median();
  }

 private:
  std::vector<double> values_;
};

}  // namespace onecopy::bench
