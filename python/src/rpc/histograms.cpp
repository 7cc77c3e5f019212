// SPDX-License-Identifier: Apache-2.0
#include "rpc/histograms.h"

#include <algorithm>
#include <bit>

namespace onecopy::python {

void Histogram::add(std::int64_t ns, bool failed) noexcept {
  const auto us = static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 0) / 1000);
  ++buckets[std::min<std::size_t>(std::bit_width(us), kBuckets - 1)];
  ++calls;
  errors += failed ? 1 : 0;
  total_ns += ns;
  longest_ns = std::max(longest_ns, ns);
}

std::uint64_t Histogram::quantile(double part) const noexcept {
  double left = part * static_cast<double>(calls);
  for (std::size_t n = 0; n < kBuckets; ++n) {
    left -= static_cast<double>(buckets[n]);
    if (left <= 0 && buckets[n] != 0) return std::uint64_t{1} << n;
  }
  return 0;
}

nb::dict Histogram::report() const {
  nb::dict report;
  report["calls"] = calls;
  report["errors"] = errors;
  report["mean_us"] =
      static_cast<double>(total_ns) / 1e3 / static_cast<double>(std::max<std::uint64_t>(calls, 1));
  report["p50_us"] = quantile(0.5);
  report["p99_us"] = quantile(0.99);
  report["longest_us"] = static_cast<double>(longest_ns) / 1e3;
  report["buckets"] = list_of(buckets);
  return report;
}

Histogram& Histograms::of(std::string_view function) {
  const auto at = histograms_.find(function);
  return at != histograms_.end() ? at->second : histograms_[std::string(function)];
}

nb::dict Histograms::reports() const {
  nb::dict reports;
  for (const auto& [function, histogram] : histograms_)
    if (histogram.calls != 0) reports[function.c_str()] = histogram.report();
  return reports;
}

}  // namespace onecopy::python
