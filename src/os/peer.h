// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "os/fd.h"

namespace onecopy {

// The process at the other end of a Unix socket. Thread safety: all functions may be called concurrently.

/// The process that connected or listens, as the kernel recorded it when the connection was made.
struct PeerCredentials {
  int pid = 0;               ///< 0 for a process of another pid namespace
  unsigned uid = 0;          ///< for messages; see is_our_user
  bool is_our_user = false;  ///< whether the process runs as the effective user of this one
};

/// Throws system if `socket` is not a connected Unix socket.
///
/// In a user namespace, the kernel reports all users that the namespace does not map as one, the overflow uid (65534,
/// "nobody"). A process that runs under this uid there may have any of them as its peer. Then `is_our_user` is true
/// only if the kernel lets this process send the peer a signal, for which it compares the users themselves.
PeerCredentials credentials_of(int socket);

/// The second half of a sentence about a peer that is not our user: its uid, ours, and what to do if they are equal.
std::string describe_other_user(unsigned peer_uid);

/// A descriptor of the peer process itself, readable at its exit. Throws peer_died if it is gone.
Fd pidfd_of_peer(int socket);

}  // namespace onecopy
