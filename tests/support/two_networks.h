// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace onecopy::testing {

/// Two connected network namespaces, which simulate two hosts. Each belongs to a child, which calls enter_network()
/// first; the test connects them.
///
/// Thread safety: used by one thread.
class TwoNetworks {
 public:
  /// Returns why this machine cannot make them, or an empty text if it can.
  static std::string obstacle();
  static constexpr const char* kAddresses[2] = {"10.213.57.1", "10.213.57.2"};

  /// Connects the namespaces of two children. REQUIRES: both have called enter_network().
  TwoNetworks(int first_pid, int second_pid);

  void cut();
  /// Restores the connection after a cut.
  void mend();
  /// Disturbs what the first child sends, e.g. "delay 20ms loss 2%". Returns false if the machine lacks tc or netem.
  bool disturb(const std::string& how);
  /// Ends what disturb() did.
  void undisturb();

 private:
  const int pids_[2];
};

/// Moves the calling process into a new network namespace. REQUIRES: the process has one thread.
void enter_network();

}  // namespace onecopy::testing
