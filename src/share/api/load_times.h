// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace onecopy {

/// How long the threads of a load to a card have read and waited, all of them together, for the log. Thread safety:
/// sums may be added to concurrently.
struct LoadTimes {
  using Nanoseconds = std::atomic<std::uint64_t>;

  Nanoseconds prepared{0};               ///< the caller alone: pinned memory for the ring
  Nanoseconds read{0};                   ///< from the file into the ring
  Nanoseconds waited{0};                 ///< for a part of the ring that the card was still to copy
  std::atomic<std::uint64_t> direct{0};  ///< bytes that were read past the page cache

  std::string text() const;
};

/// Adds its own life to a sum.
class Spent {
 public:
  explicit Spent(LoadTimes::Nanoseconds& sum) noexcept : sum_(sum) {}
  Spent(const Spent&) = delete;
  Spent& operator=(const Spent&) = delete;
  ~Spent() { sum_ += static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - begin_).count()); }

 private:
  using Clock = std::chrono::steady_clock;
  LoadTimes::Nanoseconds& sum_;
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace onecopy
