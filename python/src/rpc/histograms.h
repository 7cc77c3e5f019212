// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "binding/module.h"

namespace onecopy::python {

/// The times of the calls of one function, in buckets of powers of two: bucket n counts the times from 2^(n - 1) µs to
/// below 2^n µs.
struct Histogram {
  static constexpr std::size_t kBuckets = 32;  ///< the last one begins at 36 minutes

  void add(std::int64_t ns, bool failed) noexcept;
  /// Returns an upper bound in µs for the times of that part of the calls.
  std::uint64_t quantile(double part) const noexcept;
  nb::dict report() const;

  std::array<std::uint64_t, kBuckets> buckets{};
  std::uint64_t calls = 0, errors = 0;
  std::int64_t total_ns = 0, longest_ns = 0;
};

/// The histograms of functions, at fixed addresses. Thread safety: the GIL.
class Histograms {
 public:
  Histogram& of(std::string_view function);
  /// Returns {function: report} of the functions that were called.
  nb::dict reports() const;

 private:
  std::map<std::string, Histogram, std::less<>> histograms_;
};

}  // namespace onecopy::python
