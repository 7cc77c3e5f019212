// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "support/limits.h"

namespace onecopy::testing {

/// Ends a test that hangs: after `limit`, it writes the stacks of all threads of this process and of its children to
/// stderr, kills the children, and aborts this process. Make it before forking, so that children can write their
/// stacks.
///
/// Thread safety: made and destroyed by the test's thread.
class Watchdog {
 public:
  /// The default limit: a little less than ctest's limit for a test, and four times as much with sanitizers.
  static constexpr std::chrono::seconds kLimit{kSanitized ? 200 : 50};

  explicit Watchdog(std::chrono::seconds limit = kLimit);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  /// Writes the stacks without ending the test.
  static void dump_stacks();

 private:
  void watch(std::chrono::seconds limit);

  std::mutex mutex_;
  std::condition_variable done_changed_;
  bool watching_ = false;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace onecopy::testing
