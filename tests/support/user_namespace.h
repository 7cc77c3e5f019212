// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

namespace onecopy::testing {

/// The overflow uid, which the kernel reports for all users that a user namespace does not map.
inline constexpr uid_t kNobody = 65534;

/// This process becomes a user of the host in a user namespace of its own, which shows that user as kNobody. Returns an
/// empty text, or else why it cannot. REQUIRES: it runs as root and has one thread.
std::string try_become_nobody(uid_t user);

}  // namespace onecopy::testing
