// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace onecopy::cli {

/// Turns SIGINT, SIGTERM and SIGHUP into a state to be asked for, so that commands end in order: files removed,
/// borrowers told. Make one before any thread starts: threads inherit the mask. Thread safety: none.
class Interrupts {
 public:
  Interrupts();

  /// Has the user asked us to end? Stays true.
  bool pending() noexcept;
  /// Throws an Error that says so when pending().
  void check();
  /// Sleeps until pending().
  void wait() noexcept;
  /// Sleeps until pending() or until the time has passed; says whether pending().
  bool wait_for(std::chrono::nanoseconds time) noexcept;

 private:
  bool seen_ = false;
};

}  // namespace onecopy::cli
