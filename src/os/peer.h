// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "os/fd.h"

namespace onecopy {

// Functions that describe the process at the other end of a Unix socket. Thread safety: all may be called concurrently.

/// The process that connected or listens, as the kernel recorded it when the connection was made.
struct PeerCredentials {
  int pid = 0;               ///< 0 for a process of another pid namespace
  unsigned uid = 0;          ///< for messages only; see is_our_user
  bool is_our_user = false;  ///< whether the process runs as the effective user of this one
};

/// Returns the credentials of the peer of `socket`. Throws system if it is not a connected Unix socket.
///
/// In a user namespace, the kernel reports every user that the namespace does not map as the overflow uid (65534,
/// "nobody"). If this process itself runs under that uid, its peer may be any of them. `is_our_user` is then true only
/// if the kernel lets this process send the peer a signal, because the kernel compares the real users for that.
PeerCredentials credentials_of(int socket);

/// Returns the second half of a sentence about a peer of another user: its uid, this process's uid, and what to do if
/// they are equal.
std::string describe_other_user(unsigned peer_uid);

/// Returns a descriptor of the peer process, which becomes readable when the process exits. Throws peer_died if the
/// process is gone.
Fd pidfd_of_peer(int socket);

}  // namespace onecopy
