// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace onecopy::cli {

/// A guard that turns SIGINT, SIGTERM and SIGHUP into a state to be checked, so that commands can clean up: remove
/// files, notify borrowers. Construct it before any thread starts, because threads inherit the mask. Thread safety:
/// none.
class Interrupts {
 public:
  Interrupts();

  /// Returns whether the user has asked this process to end. Stays true.
  bool pending() noexcept;
  /// Throws an Error if pending().
  void check();
  /// Sleeps until pending().
  void wait() noexcept;
  /// Sleeps until pending() or until the time has passed. Returns pending().
  bool wait_for(std::chrono::nanoseconds time) noexcept;

 private:
  bool seen_ = false;
};

}  // namespace onecopy::cli
