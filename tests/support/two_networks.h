// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace onecopy::testing {

/// Two network namespaces with a cable between them, for members of two hosts. Each is the one of a child, which calls
/// enter_network() first; the test lays the cable.
///
/// Thread safety: used by one thread.
class TwoNetworks {
 public:
  /// Why there can be none on this machine; empty when there can.
  static std::string obstacle();
  static constexpr const char* kAddresses[2] = {"10.213.57.1", "10.213.57.2"};

  /// Between the namespaces of two children that have entered theirs.
  TwoNetworks(int first_pid, int second_pid);

  void cut();
  /// Mends the cable that was cut.
  void mend();
  /// Of what the first sends: "delay 20ms loss 2%". False when the machine has no tc, or no netem.
  bool disturb(const std::string& how);
  /// Ends what disturb() did.
  void undisturb();

 private:
  const int pids_[2];
};

/// Puts the calling process, which has one thread, into a network namespace of its own.
void enter_network();

}  // namespace onecopy::testing
