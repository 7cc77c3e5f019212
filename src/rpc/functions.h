// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "os/mutex.h"

namespace onecopy::rpc {

/// A function that this process calls in other members, or that they call here, under one name.
/// Thread safety: all members may be called concurrently.
class FunctionEntry {
 public:
  explicit FunctionEntry(std::string_view name) : name_(name) {}

  const std::string& name() const noexcept { return name_; }
  /// Returns the callable that the language of this process runs; null before define(). A call keeps the callable that
  /// it runs, which another one may replace meanwhile.
  std::shared_ptr<void> callable() const {
    const LockGuard lock(mutex_);
    return callable_;
  }
  /// The mean time of calls of this process, in ns: a waiting thread does not spin for a long call.
  std::atomic<std::uint32_t> mean_ns{0};

 private:
  friend class Functions;

  const std::string name_;
  std::atomic<std::int64_t> number_{
      -1};  ///< the function's number in calls of this process; -1 before the first call
  mutable Mutex mutex_;
  std::shared_ptr<void> callable_ GUARDED_BY(mutex_);
};

/// The functions of a process: one table from names to numbers and callables.
///
/// Thread safety: all members may be called concurrently.
/// Invariant: FunctionEntries stay where they are until the end of the table.
class Functions {
 public:
  /// Returns the function of that name. Adds the name if it is new.
  FunctionEntry& of(std::string_view name);
  /// Returns the number of a function in calls of this process. Throws out_of_memory when there are too many, invalid_argument for
  /// a name that cannot be sent.
  std::uint32_t number_of(FunctionEntry& function);
  /// Sets the callable of a function, and releases the one before once no call runs it.
  static void define(FunctionEntry& function, std::shared_ptr<void> callable);
  /// Returns the callables of all functions that have one.
  std::vector<std::shared_ptr<void>> callables() const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::unique_ptr<FunctionEntry>, std::less<>> functions_ GUARDED_BY(mutex_);
  std::uint32_t numbers_ GUARDED_BY(mutex_) = 0;
};

}  // namespace onecopy::rpc
