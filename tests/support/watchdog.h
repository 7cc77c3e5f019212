// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "support/limits.h"

namespace onecopy::testing {

/// Ends a test that hangs: when it lives longer than `limit`, the stacks of all threads of this
/// process and of its children are written to stderr, the children are killed and this process
/// aborts. Make it before forking, so that children know how to tell their stacks.
///
/// Thread safety: made and destroyed by the test's thread.
class Watchdog {
 public:
  /// A little less than ctest's limit for a test; with sanitizers it is four times as much.
  static constexpr std::chrono::seconds kLimit{kSanitized ? 200 : 50};

  explicit Watchdog(std::chrono::seconds limit = kLimit);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  /// The dump alone, without the end.
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
