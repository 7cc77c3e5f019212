// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "os/mutex.h"

namespace onecopy {

/// The order of the library's locks at a fork: those of an earlier rank are taken first. Before a fork steps run from
/// the first rank to the last, and after it from the last to the first.
enum class ForkRank {
  storages,  ///< torch storages: blocks are released with its lock held
  queues,
  runtime,  ///< Runtime::lock_all() has the order of its parts
  devices,
  leaves,  ///< locks under which no other is taken
  count
};

/// The steps of a module at a fork; empty ones are left out. They must not throw.
struct ForkSteps {
  void (*prepare)() = nullptr;
  void (*in_parent)() = nullptr;
  void (*in_child)() = nullptr;
};

/// Registers the steps of a module: the only way in which this library hears of forks. Steps of one rank do not
/// depend on each other, and run in any order.
///
/// Every hook is an object of namespace scope, so it is there before a thread can fork. A hook that is registered at
/// first use would miss a fork that is half over, whose child inherits a locked mutex. So steps also run in processes
/// that use nothing of their module. Thread safety: a library may be loaded while another thread forks.
class ForkHook {
 public:
  ForkHook(ForkRank rank, const ForkSteps& steps) noexcept;
  ForkHook(const ForkHook&) = delete;
  ForkHook& operator=(const ForkHook&) = delete;

  /// Throws unless the system runs the steps.
  static void check_registered();

 private:
  // No analysis follows locks from the one before to those after.
  static void prepare() noexcept NO_THREAD_SAFETY_ANALYSIS;
  static void finish_in_parent() noexcept NO_THREAD_SAFETY_ANALYSIS;
  static void finish_in_child() noexcept NO_THREAD_SAFETY_ANALYSIS;

  static const int kError;  ///< of pthread_atfork()

  const ForkSteps steps_;
  const ForkHook* next_ = nullptr;  ///< of its rank
};

}  // namespace onecopy
