// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "support/carried_cable.h"

namespace onecopy::testing {

/// Simulates two hosts by two connected network namespaces. Each namespace belongs to a child, which calls
/// enter_network() first; the test connects the two.
///
/// Thread safety: used by one thread.
class TwoNetworks {
 public:
  /// Returns why this machine cannot make network namespaces, or an empty text if it can.
  static std::string obstacle();
  static constexpr const char* kAddresses[2] = {"10.213.57.1", "10.213.57.2"};

  enum class Cable : std::uint8_t {
    fast,    ///< a cable of the kernel, for measurements
    carried  ///< a CarriedCable, which may be disturbed
  };

  /// Connects the namespaces of two children. REQUIRES: both have called enter_network().
  TwoNetworks(int first_pid, int second_pid, Cable cable);

  void cut();
  /// Restores the connection after a cut.
  void mend();
  /// Removes the route from the second network to the first, and restores the route.
  void make_unreachable();
  void make_reachable();
  /// Disturbs the packets in both directions, as CarriedCable does. REQUIRES: the cable is a CarriedCable.
  void disturb(std::chrono::milliseconds delay, double loss) { carried_->disturb(delay, loss); }
  /// Ends what disturb() did.
  void undisturb() { disturb({}, 0); }

 private:
  const int pids_[2];
  std::unique_ptr<CarriedCable> carried_;
};

/// Moves the calling process into a new network namespace. REQUIRES: the process has one thread.
void enter_network();

}  // namespace onecopy::testing
