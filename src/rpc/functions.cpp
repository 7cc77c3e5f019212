// SPDX-License-Identifier: Apache-2.0
#include "rpc/functions.h"

#include <utility>

#include "onecopy/core/error.h"
#include "rpc/message.h"

namespace onecopy::rpc {

FunctionEntry& Functions::of(std::string_view name) {
  const LockGuard lock(mutex_);
  const auto at = functions_.find(name);
  if (at != functions_.end()) return *at->second;
  return *functions_.emplace(name, std::make_unique<FunctionEntry>(name)).first->second;
}

std::uint32_t Functions::number_of(FunctionEntry& function) {
  const std::int64_t known = function.number_.load(std::memory_order_acquire);
  if (known >= 0) return static_cast<std::uint32_t>(known);
  const std::string& name = function.name();
  if (name.empty() || name.size() > kMaxNameBytes)
    throw Error(ErrorCode::invalid_argument, "the name of a function to be called has 1 to 1024 bytes");
  const LockGuard lock(mutex_);
  if (function.number_.load() < 0) {
    if (numbers_ == kMaxFunctions)
      throw Error(ErrorCode::out_of_memory, "more functions are called than there are numbers for");
    function.number_.store(numbers_++, std::memory_order_release);
  }
  return static_cast<std::uint32_t>(function.number_.load());
}

void Functions::define(FunctionEntry& function, std::shared_ptr<void> callable) {
  const LockGuard lock(function.mutex_);
  function.callable_.swap(callable);  // the one before is released after the lock
}

std::vector<std::shared_ptr<void>> Functions::callables() const {
  std::vector<std::shared_ptr<void>> all;
  const LockGuard lock(mutex_);
  for (const auto& [name, function] : functions_)
    if (auto callable = function->callable()) all.push_back(std::move(callable));
  return all;
}

}  // namespace onecopy::rpc
