// SPDX-License-Identifier: Apache-2.0
#include "os/stream_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <thread>
#include <variant>

#include "core/throw_error.h"
#include "os/deadline.h"
#include "os/unix_address.h"

namespace onecopy {
namespace {

[[noreturn]] void throw_bad_address(std::string_view address, std::string_view reason) {
  throw_error(ErrorCode::invalid_argument,
              "\"{}\" is not an address: {}; write unix:/path, unix:@name or "
              "tcp:127.0.0.1:port (port 0 picks a free one)",
              address, reason);
}

HostPort parse_tcp(std::string_view address, std::string_view rest) {
  const auto colon = rest.rfind(':');
  if (colon == std::string_view::npos) throw_bad_address(address, "the port is missing");
  const std::string_view host = rest.substr(0, colon);
  if (host != "127.0.0.1" && host != "localhost")
    throw_bad_address(address, "the host must be 127.0.0.1 or localhost");
  const std::string_view digits = rest.substr(colon + 1);
  std::uint16_t port = 0;
  const char* end = digits.data() + digits.size();
  const auto [at, error] = std::from_chars(digits.data(), end, port);
  if (error != std::errc{} || at != end || digits.empty())
    throw_bad_address(address, "the port is not a number from 0 to 65535");
  return HostPort::of_ipv4(INADDR_LOOPBACK, port);
}

/// Parses "unix:/path", "unix:@name", "tcp:127.0.0.1:0" or "tcp:localhost:0". Throws invalid_argument for everything
/// else.
std::variant<SocketName, HostPort> parse_stream_address(const std::string& address) {
  const std::string_view text = address;
  if (text.starts_with("tcp:")) return parse_tcp(text, text.substr(4));
  if (text.starts_with("unix:@")) return SocketName{address.substr(6), true};
  if (text.starts_with("unix:")) return SocketName{address.substr(5), false};
  throw_bad_address(text, "it begins with neither unix: nor tcp:");
}

void set_option(int fd, int level, int option) noexcept {
  const int on = 1;
  ::setsockopt(fd, level, option, &on, sizeof on);
}

Fd make_tcp_socket(const HostPort& at) {
  Fd fd(::socket(at.is_ipv4() ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw_errno("cannot create a TCP socket", errno);
  return fd;
}

std::uint16_t listen_tcp(const Fd& fd, const HostPort& at, int backlog) {
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR);  // lets a restarted program listen on its port again
  const auto usual = first_host_address();
  if (usual && IN6_ARE_ADDR_EQUAL(&usual->host, &at.host)) {  // its interface may be down yet
    if (at.is_ipv4()) set_option(fd.get(), IPPROTO_IP, IP_FREEBIND);
    else set_option(fd.get(), IPPROTO_IPV6, IPV6_FREEBIND);
  }
  const int no = 0;  // a listener at :: takes IPv4, too
  if (!at.is_ipv4()) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  sockaddr_storage address = at.to_socket_address();
  socklen_t size = sizeof address;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(fd.get(), backlog) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw_errno(fmt::format("cannot listen on {}", at.str()), errno);
  return HostPort::of(address).port;
}

/// Makes one attempt to connect, and returns its outcome as an errno.
int try_to_connect(int fd, const sockaddr_storage& address, const Deadline& deadline) {
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  if (!deadline.wait_for(fd, POLLOUT)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

/// Returns whether there is no route to an address now, as while a cable is cut.
bool is_unreachable(int error) noexcept {
  return error == EHOSTUNREACH || error == ENETUNREACH || error == EHOSTDOWN || error == ENETDOWN;
}

void connect_tcp(const Fd& fd, const HostPort& at, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kPause{20};
  const Deadline deadline(timeout);
  int error = 0;
  while (is_unreachable(error = try_to_connect(fd.get(), at.to_socket_address(), deadline)) &&
         deadline.left(kPause) == kPause)
    std::this_thread::sleep_for(kPause);
  if (error == 0) return;
  const std::string what = fmt::format("cannot connect to {}", at.str());
  if (error == ECONNREFUSED || error == ECONNRESET)  // reset: the listener closed before it accepted
    throw Error(ErrorCode::peer_died, what + ": no process listens there", error, ErrorDomain::posix);
  const bool is_late = error == ETIMEDOUT || is_unreachable(error);
  throw_errno(what, error, is_late ? ErrorCode::timeout : ErrorCode::system);
}

/// Creates the directory of a path. The directory may belong to another user who listens there too: only the socket
/// file must be ours.
void make_directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos || slash == 0) return;
  ::mkdir(path.substr(0, slash).c_str(), 0700);  // if it is still missing, bind reports it
}

[[noreturn]] void throw_connection_closed(int error) {
  throw Error(ErrorCode::peer_died, "the process at the other end has closed the connection or exited",
              error, error ? ErrorDomain::posix : ErrorDomain::none);
}

/// Returns when a call that returned -1 may be retried, or throws.
void wait_or_throw(int fd, short events, const Deadline& deadline, int error, std::size_t missing) {
  if (error == EINTR) return;
  if (error == EPIPE || error == ECONNRESET || error == ENOTCONN) throw_connection_closed(error);
  if (error != EAGAIN) throw_errno("a connection failed", error);
  if (!deadline.wait_for(fd, events))
    throw_error(ErrorCode::timeout, "timeout: {} bytes are left to {}", missing,
                events == POLLIN ? "receive" : "send");
}

}  // namespace

StreamSocket::StreamSocket(Fd fd, std::string address, BoundPath path)
    : fd_(std::move(fd)), address_(std::move(address)), path_(std::move(path)) {}

StreamSocket StreamSocket::listen(const std::string& address, int backlog) {
  const auto parsed = parse_stream_address(address);
  if (const auto* name = std::get_if<SocketName>(&parsed)) {
    if (!name->abstract) make_directory_of(name->text);
    Fd fd = make_unix_socket(SOCK_STREAM);
    BoundPath path = listen_unix(fd, *name, SOCK_STREAM, backlog);
    return StreamSocket(std::move(fd), address, std::move(path));
  }
  return listen(std::get<HostPort>(parsed), backlog);
}

StreamSocket StreamSocket::listen(const HostPort& at, int backlog) {
  Fd fd = make_tcp_socket(at);
  const auto port = listen_tcp(fd, at, backlog);
  return StreamSocket(std::move(fd), "tcp:" + HostPort{at.host, port}.str());
}

StreamSocket StreamSocket::connect(const std::string& address, std::chrono::milliseconds timeout) {
  const auto parsed = parse_stream_address(address);
  if (const auto* name = std::get_if<SocketName>(&parsed)) {
    Fd fd = make_unix_socket(SOCK_STREAM);
    connect_unix(fd, *name, timeout);
    return StreamSocket(std::move(fd), address);
  }
  return connect(std::get<HostPort>(parsed), timeout);
}

StreamSocket StreamSocket::connect(const HostPort& at, std::chrono::milliseconds timeout) {
  Fd fd = make_tcp_socket(at);
  connect_tcp(fd, at, timeout);
  set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY);
  return StreamSocket(std::move(fd), "tcp:" + at.str());
}

std::optional<StreamSocket> StreamSocket::try_accept() {
  Fd fd = try_accept_from(fd_.get());
  if (!fd) return std::nullopt;
  set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY);  // Unix sockets refuse this, which is harmless
  return StreamSocket(std::move(fd), "");
}

StreamSocket StreamSocket::accept(std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  for (;;) {
    if (auto accepted = try_accept()) return std::move(*accepted);
    if (!deadline.wait_for(fd_.get(), POLLIN))
      throw_error(ErrorCode::timeout, "no client connected to {} within {} ms", address_, timeout.count());
  }
}

void StreamSocket::send_all(ByteSpan bytes, std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  while (!bytes.empty()) {
    const ssize_t put = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put >= 0) bytes = bytes.subspan(static_cast<std::size_t>(put));
    else wait_or_throw(fd_.get(), POLLOUT, deadline, errno, bytes.size());
  }
}

void StreamSocket::receive_exactly(std::span<std::byte> bytes, std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  while (!bytes.empty()) {
    const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) bytes = bytes.subspan(static_cast<std::size_t>(got));
    else if (got == 0) throw_connection_closed(0);
    else wait_or_throw(fd_.get(), POLLIN, deadline, errno, bytes.size());
  }
}

std::optional<PeerCredentials> StreamSocket::peer() const {
  int domain = 0;
  socklen_t size = sizeof domain;
  if (::getsockopt(fd_.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX)
    return std::nullopt;
  return credentials_of(fd_.get());
}

Fd StreamSocket::release() noexcept {
  path_.forget();
  return std::move(fd_);
}

}  // namespace onecopy
