// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

namespace onecopy::testing {

/// The overflow uid, which the kernel reports for all users that a user namespace does not map.
inline constexpr uid_t kNobody = 65534;

/// Makes this process another user of the host, in a new user namespace that maps the user to kNobody. Returns an empty
/// text, or the reason of the failure. REQUIRES: the process runs as root and has one thread.
std::string try_become_nobody(uid_t user);

}  // namespace onecopy::testing
