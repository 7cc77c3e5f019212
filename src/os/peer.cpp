// SPDX-License-Identifier: Apache-2.0
#include "os/peer.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <sstream>

#include "onecopy/core/error.h"
#include "os/file.h"
#include "os/process.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

namespace onecopy {
namespace {

/// Returns the uid that the kernel reports for users that a namespace does not map.
unsigned overflow_uid() {
  constexpr unsigned kUsual = 65534;
  static const unsigned known = [] {
    const auto text = try_read_text("/proc/sys/kernel/overflowuid");
    const unsigned long value = text ? std::strtoul(text->c_str(), nullptr, 10) : 0;
    return value != 0 ? static_cast<unsigned>(value) : kUsual;
  }();
  return known;
}

/// Returns whether every user has a uid here, as outside of all user namespaces. Read at each call, because a process
/// may enter a namespace.
bool are_all_users_mapped() {
  std::istringstream map(try_read_text("/proc/self/uid_map").value_or(""));
  std::uint64_t mapped = 0;
  for (std::uint64_t inside = 0, outside = 0, count = 0; map >> inside >> outside >> count;)
    mapped += count;
  return mapped >= UINT32_MAX;  // -1 is not a user
}

/// Returns whether the kernel lets this process signal the peer: it compares real and effective users, not the numbers
/// that it reports.
bool may_signal(int socket) {
  try {
    const Fd pidfd = pidfd_of_peer(socket);
    return ::syscall(SYS_pidfd_send_signal, pidfd.get(), 0, nullptr, 0) == 0;
  } catch (
      const Error&) {  // the peer is gone, or the kernel lacks these descriptors: the peer cannot prove its user
    return false;
  }
}

bool is_our_user(unsigned uid, int socket) {
  if (uid != ::geteuid()) return false;
  return uid != overflow_uid() || are_all_users_mapped() || may_signal(socket);
}

ucred kernel_credentials(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    throw_errno("cannot read the credentials of a socket's peer", errno);
  return peer;
}

}  // namespace

PeerCredentials credentials_of(int socket) {
  const ucred peer = kernel_credentials(socket);
  return {peer.pid, peer.uid, is_our_user(peer.uid, socket)};
}

std::string describe_other_user(unsigned peer_uid) {
  const unsigned ours = ::geteuid();
  if (peer_uid != ours) return fmt::format("runs as uid {}, this process as uid {}", peer_uid, ours);
  return fmt::format(
      "has uid {} here, as this process has: that is the uid of every user that this user namespace does "
      "not map, and "
      "the kernel does not confirm that the two are one user. Map the user in the namespace (uid_map)",
      ours);
}

Fd pidfd_of_peer(int socket) {
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return Fd(fd);
  if (errno == ESRCH || errno == EINVAL)
    throw Error(ErrorCode::peer_died, "the process at the other end has closed the socket or is gone",
                errno, ErrorDomain::posix);
  if (errno != ENOPROTOOPT) throw_errno("cannot get a descriptor of the peer process", errno);
  return open_pidfd(kernel_credentials(socket).pid);
}

}  // namespace onecopy
