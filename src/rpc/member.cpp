// SPDX-License-Identifier: Apache-2.0
#include "rpc/member.h"

#include <fmt/format.h>

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

const char* why_ended(const Member& member) noexcept {
  if (member.has_left) return "left the group";
  return member.shares_memory ? "ended" : "ended, or was cut off for too long,";
}

void throw_ended_early(const Member& member) {
  throw Error(ErrorCode::peer_died, fmt::format("{} (pid {}) has ended before it could be called",
                                                member.name(), member.address.pid));
}

std::function<void()> TransportHost::end_of(const Member& member) const {
  return [exit = member.exit, bell = bell()] {
    exit->store(true);
    (*bell)->calls.ring();
    (*bell)->answers.ring_all();
  };
}

}  // namespace onecopy::rpc
