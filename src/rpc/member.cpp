// SPDX-License-Identifier: Apache-2.0
#include "rpc/member.h"

#include "onecopy/core/error.h"

namespace onecopy::rpc {

Numbers::Entry& Numbers::of(std::string_view name) {
  const LockGuard lock(mutex_);
  if (const auto at = entries_.find(name); at != entries_.end()) return at->second;
  if (entries_.size() == kMostFunctions)
    throw Error(ErrorCode::out_of_memory,
                "more functions of one member are called than there are numbers for");
  if (name.empty() || name.size() > kMostNameBytes)
    throw Error(ErrorCode::invalid_argument, "the name of a function to be called has 1 to 1024 bytes");
  Entry& entry = entries_[std::string(name)];
  entry.number = static_cast<std::uint32_t>(entries_.size() - 1);
  return entry;
}

}  // namespace onecopy::rpc
