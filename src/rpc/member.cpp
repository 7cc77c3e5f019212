// SPDX-License-Identifier: Apache-2.0
#include "rpc/member.h"

#include "core/throw_error.h"

namespace onecopy::rpc {

const char* why_ended(const Member& member) noexcept {
  if (member.has_refused)
    return "refused this process, whose number or name in the group is that of another process; start each "
           "member once, with a number of its own";
  if (member.has_left) return "left the group";
  return member.shares_memory ? "ended" : "ended or was cut off for too long";
}

void throw_ended_early(const Member& member) {
  throw_error(ErrorCode::peer_died, "{} (pid {}) has ended before it could be called", member.name(),
              member.address.pid);
}

std::function<void()> TransportHost::end_of(const Member& member) const {
  return [exit = member.exit, bell = bell()] {
    exit->store(true);
    (*bell)->calls.ring();
    (*bell)->answers.ring_all();
  };
}

}  // namespace onecopy::rpc
