// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "binding/gil.h"
#include "binding/module.h"

/// Times of the clock of time.monotonic().
namespace onecopy::python {

inline std::int64_t now_ns() noexcept {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

inline std::int64_t ns_of(Deadline deadline) noexcept { return deadline.at().time_since_epoch().count(); }

inline nb::object to_seconds(Deadline deadline) {
  if (deadline == kForever) return nb::none();
  return nb::float_(static_cast<double>(ns_of(deadline)) / 1e9);
}

/// Returns the seconds until the deadline, or None for no deadline.
inline nb::object seconds_until(Deadline deadline) {
  if (deadline == kForever) return nb::none();
  return nb::float_(static_cast<double>(ns_of(deadline) - now_ns()) / 1e9);
}

/// Returns the limit of a call in seconds, 0 for no limit: the timeout, or `usual` if the timeout is None or negative.
/// Raises TypeError for another type, and ValueError for NaN.
inline double seconds_of(nb::handle timeout, double usual) {
  if (timeout.is_none()) return usual;
  const double seconds = PyFloat_AsDouble(timeout.ptr());
  if (seconds == -1.0 && PyErr_Occurred()) throw nb::python_error();
  if (seconds != seconds) throw nb::value_error("timeout is not a number");
  return seconds < 0 ? usual : seconds;
}

/// Returns the deadline after that many seconds, or no deadline for 0.
inline Deadline deadline_after(double seconds) noexcept {
  if (seconds == 0 || seconds > 1e9) return kForever;
  return Deadline::after(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
}

}  // namespace onecopy::python
