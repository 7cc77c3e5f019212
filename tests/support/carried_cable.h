// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "os/fd.h"

namespace onecopy::testing {

/// A cable between two network namespaces, of which a thread of this process carries each packet from one end to the
/// other. The cable can be slow and lossy, on a kernel without netem as well.
///
/// Thread safety: all members may be called concurrently.
class CarriedCable {
 public:
  /// Makes an interface in the network namespace of each process.
  CarriedCable(const int (&pids)[2], const char* const (&names)[2]);
  ~CarriedCable();
  CarriedCable(const CarriedCable&) = delete;
  CarriedCable& operator=(const CarriedCable&) = delete;

  /// Delays each packet, and drops some. A loss of 0.01 is one packet in a hundred.
  void disturb(std::chrono::milliseconds delay, double loss) noexcept;
  /// Tells both interfaces whether the cable is plugged in.
  void plug(bool is_plugged) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Packet {
    Clock::time_point due;
    std::vector<char> bytes;
  };

  void carry();
  void take_from(int end);
  void deliver_to(int end);
  int ms_until_next() const;

  std::array<Fd, 2> ends_;
  std::array<std::deque<Packet>, 2> to_;  ///< used by the thread only
  std::mt19937 random_{std::random_device{}()};
  std::atomic<std::chrono::milliseconds> delay_{std::chrono::milliseconds{0}};
  std::atomic<double> loss_{0};
  std::atomic<bool> is_over_{false};
  std::jthread thread_;
};

}  // namespace onecopy::testing
