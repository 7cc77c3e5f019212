// SPDX-License-Identifier: Apache-2.0
#include "os/unix_socket.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "core/throw_error.h"
#include "os/deadline.h"
#include "os/file.h"
#include "os/unix_address.h"

namespace onecopy {
namespace {

constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(int) * UnixSocket::kMaxPacketFds);

struct alignas(cmsghdr) Control {
  std::array<char, kControlBytes> bytes;
};

[[noreturn]] void throw_peer_closed(int error) {
  throw Error(ErrorCode::peer_died, "the process at the other end has closed the socket or exited", error,
              error ? ErrorDomain::posix : ErrorDomain::none);
}

void check_packet(ByteSpan bytes, std::span<const int> fds) {
  if (bytes.empty() || bytes.size() > UnixSocket::kMaxPacketBytes)
    throw_error(ErrorCode::invalid_argument,
                "a packet has {} bytes, but 1 to {} are possible; send it in pieces", bytes.size(),
                UnixSocket::kMaxPacketBytes);
  if (fds.size() > UnixSocket::kMaxPacketFds)
    throw_error(ErrorCode::invalid_argument,
                "a packet has {} descriptors, but at most {} are possible; send several packets",
                fds.size(), UnixSocket::kMaxPacketFds);
}

void attach(msghdr& message, Control& control, std::span<const int> fds) noexcept {
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  std::memset(control.bytes.data(), 0, message.msg_controllen);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
}

[[noreturn]] void throw_send_failed(int error, std::size_t fds) {
  if (error == EPIPE || error == ECONNRESET || error == ENOTCONN) throw_peer_closed(error);
  if (error == ETOOMANYREFS)
    throw Error(ErrorCode::out_of_descriptors,
                fmt::format("cannot send {} descriptors: this user has too many on the way "
                            "(RLIMIT_NOFILE); raise `ulimit -n` or let the receivers catch up",
                            fds),
                error, ErrorDomain::posix);
  throw_errno(fmt::format("cannot send a packet with {} descriptors", fds), error,
              error == EBADF ? ErrorCode::invalid_argument : ErrorCode::system);
}

/// Takes ownership of every descriptor that arrived, before anything else can fail.
std::vector<Fd> take_descriptors(msghdr& message) {
  std::array<Fd, UnixSocket::kMaxPacketFds> taken;
  std::size_t count = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < here && count < taken.size(); ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      taken[count++].reset(fd);
    }
  }
  return {std::make_move_iterator(taken.begin()), std::make_move_iterator(taken.begin() + count)};
}

void check_size(const msghdr& message) {
  if (message.msg_flags & MSG_TRUNC)
    throw_error(ErrorCode::protocol,
                "the peer sent a packet of more than {} bytes; it does not speak this protocol",
                UnixSocket::kMaxPacketBytes);
}

/// Returns this thread's buffer; pages that no packet ever needed stay untouched.
std::byte* packet_buffer() {
  thread_local const std::unique_ptr<std::byte[]> buffer =
      std::make_unique_for_overwrite<std::byte[]>(UnixSocket::kMaxPacketBytes);
  return buffer.get();
}

/// Returns the bytes received, or -1 if no packet is there. The kernel reports a reset before packets that arrived
/// earlier, and only once: asking again returns those packets, then the end.
ssize_t receive_message(int fd, msghdr& message) {
  for (;;) {
    const ssize_t got = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got >= 0 || errno == EAGAIN) return got;
    if (errno != EINTR && errno != ECONNRESET) throw_errno("cannot receive a packet", errno);
  }
}

}  // namespace

std::vector<int> numbers_of(std::span<const Fd> fds) {
  std::vector<int> numbers;
  for (const Fd& fd : fds) numbers.push_back(fd.get());
  return numbers;
}

UnixSocket::UnixSocket(Fd fd) : UnixSocket(std::move(fd), BoundPath()) {}

UnixSocket::UnixSocket(Fd fd, BoundPath path) : fd_(std::move(fd)), path_(std::move(path)) {
  const int bytes = 256 * 1024;  // room for two large packets; the default buffers hold one
  for (const int buffer : {SO_SNDBUF, SO_RCVBUF})
    ::setsockopt(fd_.get(), SOL_SOCKET, buffer, &bytes, sizeof bytes);
}

UnixSocket UnixSocket::listen(const SocketName& name, int backlog, bool is_locked) {
  const auto slash = name.text.rfind('/');
  if (!name.abstract && (slash == std::string::npos || slash == 0))
    throw_error(ErrorCode::invalid_argument, "the socket's path {} must lie in a directory of its own",
                name.text);
  if (!name.abstract) ensure_private_directory(name.text.substr(0, slash));
  Fd fd = make_unix_socket(SOCK_SEQPACKET);
  BoundPath path = listen_unix(fd, name, SOCK_SEQPACKET, backlog, is_locked);
  return UnixSocket(std::move(fd), std::move(path));
}

UnixSocket UnixSocket::connect(const SocketName& name, std::chrono::milliseconds timeout) {
  Fd fd = make_unix_socket(SOCK_SEQPACKET);
  connect_unix(fd, name, timeout);
  return UnixSocket(std::move(fd));
}

std::pair<UnixSocket, UnixSocket> UnixSocket::pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    throw_errno("cannot create a pair of sockets", errno);
  Fd first(ends[0]);
  Fd second(ends[1]);
  return {UnixSocket(std::move(first)), UnixSocket(std::move(second))};
}

void UnixSocket::follow_user() const {
  uid_t real = 0;
  uid_t effective = 0;
  uid_t saved = 0;
  ::getresuid(&real, &effective, &saved);
  const bool is_for_good = real == effective && effective == saved;
  if (is_for_good && peer().uid != effective && ::listen(fd_.get(), kBacklog) != 0)
    throw_errno("cannot listen as another user", errno);
}

std::optional<UnixSocket> UnixSocket::try_accept() {
  Fd fd = try_accept_from(fd_.get());
  if (!fd) return std::nullopt;
  return UnixSocket(std::move(fd));
}

bool UnixSocket::try_send(ByteSpan bytes, std::span<const int> fds) {
  check_packet(bytes, fds);
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Control control;
  if (!fds.empty()) attach(message, control, fds);
  for (;;) {
    if (::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return true;
    if (errno == EAGAIN) return false;
    if (errno != EINTR) throw_send_failed(errno, fds.size());
  }
}

void UnixSocket::send(ByteSpan bytes, std::span<const int> fds, std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  while (!try_send(bytes, fds))
    if (!deadline.wait_for(fd_.get(), POLLOUT))
      throw_error(ErrorCode::timeout, "the peer's buffer had no room for a packet of {} bytes within {} ms",
                  bytes.size(), timeout.count());
}

std::optional<Packet> UnixSocket::try_receive() {
  auto packet = try_receive_cut();
  if (packet && packet->is_cut)
    throw Error(ErrorCode::out_of_descriptors,
                fmt::format("only {} of the descriptors that were sent could be received: RLIMIT_NOFILE is "
                            "reached; raise `ulimit -n` or keep fewer files open",
                            packet->fds.size()),
                EMFILE, ErrorDomain::posix);
  return packet;
}

std::optional<Packet> UnixSocket::try_receive_cut() {
  std::byte* buffer = packet_buffer();
  iovec part{buffer, kMaxPacketBytes};
  Control control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const ssize_t got = receive_message(fd_.get(), message);
  if (got < 0) return std::nullopt;
  Packet packet;
  packet.fds = take_descriptors(message);
  packet.is_cut = (message.msg_flags & MSG_CTRUNC) != 0;
  check_size(message);
  if (got == 0 && !packet.is_cut) throw_peer_closed(0);
  packet.bytes.assign(buffer, buffer + got);
  return packet;
}

std::optional<Packet> UnixSocket::try_receive_for(std::chrono::microseconds max) {
  for (const auto begin = std::chrono::steady_clock::now();; std::this_thread::yield()) {
    if (auto packet = try_receive()) return packet;
    if (std::chrono::steady_clock::now() - begin > max) return std::nullopt;
  }
}

Packet UnixSocket::receive(std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  for (;;) {
    if (auto packet = try_receive()) return std::move(*packet);
    if (!deadline.wait_for(fd_.get(), POLLIN))
      throw_error(ErrorCode::timeout, "the peer sent nothing within {} ms", timeout.count());
  }
}

void UnixSocket::end_sending() noexcept { ::shutdown(fd_.get(), SHUT_WR); }

bool UnixSocket::is_readable() const {
  return Deadline(std::chrono::milliseconds(0)).wait_for(fd_.get(), POLLIN);
}

std::size_t UnixSocket::unread_bytes() const noexcept {
  int bytes = 0;
  return ::ioctl(fd_.get(), SIOCOUTQ, &bytes) == 0 && bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
}

Fd UnixSocket::release() noexcept {
  path_.forget();
  return std::move(fd_);
}

}  // namespace onecopy
