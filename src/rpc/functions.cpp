// SPDX-License-Identifier: Apache-2.0
#include "rpc/functions.h"

#include <utility>

namespace onecopy::rpc {

void Functions::define(std::string name, BodyFunction function) {
  auto made = std::make_shared<const BodyFunction>(std::move(function));
  const LockGuard lock(mutex_);
  functions_[std::move(name)] = std::move(made);
}

std::shared_ptr<const BodyFunction> Functions::find(std::string_view name) const {
  const LockGuard lock(mutex_);
  const auto at = functions_.find(name);
  return at == functions_.end() ? nullptr : at->second;
}

}  // namespace onecopy::rpc
