// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "os/mutex.h"

namespace onecopy {

/// The order of the library's locks at a fork: locks of an earlier rank are taken first. The steps before a fork run
/// from the first rank to the last, the steps after it from the last to the first.
enum class ForkRank {
  storages,  ///< torch storages: blocks are released with its lock held
  queues,
  runtime,  ///< Runtime::lock_all() keeps the order of its parts
  devices,
  leaves,  ///< locks under which no other lock is taken
  count
};

/// The steps of a module at a fork; null ones are skipped. REQUIRES: they do not throw.
struct ForkSteps {
  void (*prepare)() = nullptr;
  void (*in_parent)() = nullptr;
  void (*in_child)() = nullptr;
};

/// A registration of a module's fork steps, which is the only way to run code at forks here. Steps of one rank do not
/// depend on each other and run in any order.
///
/// Every hook is an object of namespace scope, so that it exists before any thread can fork. A hook that is registered
/// at first use would miss a fork in progress, whose child then inherits a locked mutex. Steps therefore run in every
/// process, even one that does not use the module. Thread safety: a library may be loaded while another thread forks.
class ForkHook {
 public:
  ForkHook(ForkRank rank, const ForkSteps& steps) noexcept;
  ForkHook& operator=(ForkHook&&) = delete;

  /// Throws unless the system runs the steps.
  static void check_registered();

 private:
  // The analysis cannot follow locks that are taken in prepare() and released in the other two.
  static void prepare() noexcept NO_THREAD_SAFETY_ANALYSIS;
  static void finish_in_parent() noexcept NO_THREAD_SAFETY_ANALYSIS;
  static void finish_in_child() noexcept NO_THREAD_SAFETY_ANALYSIS;

  static const int kError;  ///< result of pthread_atfork()

  const ForkSteps steps_;
  const ForkHook* next_ = nullptr;  ///< next hook of the same rank
};

}  // namespace onecopy
