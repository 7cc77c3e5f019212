// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/tls_listener.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/point.h"
#include "core/throw_error.h"
#include "os/log.h"

namespace onecopy::transport {
namespace {

constexpr int kBacklog = 1024;
constexpr std::chrono::seconds kPatience{5};
/// The time after which a silent stranger is dropped if there are too many. Members send their first bytes at once.
constexpr std::chrono::milliseconds kGrace{100};

/// Returns the address of the other end; of an IPv6 address the network, in which a host has many addresses.
std::string host_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  const HostPort at = HostPort::of(address);
  constexpr std::size_t kNetworkBytes = 8;
  return {reinterpret_cast<const char*>(&at.host), at.is_ipv4() ? sizeof at.host : kNetworkBytes};
}

}  // namespace

StreamSocket TlsListener::listen(const HostPort& at) {
  StreamSocket socket = StreamSocket::listen(at, kBacklog);
  const int seconds = kPatience.count();
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
  return socket;
}

TlsListener::TlsListener(EventLoop& loop, StreamSocket socket, Options options)
    : loop_(loop), options_(std::move(options)), socket_(std::move(socket)), unshared_(socket_.fd()) {
  loop_.add(
      socket_.fd(), [this] { accept(); }, true);
}

TlsListener::~TlsListener() {
  loop_.remove(socket_.fd());
  for (const Stranger& stranger : strangers_) loop_.remove(stranger.stream->fd());
}

std::string TlsListener::endpoint() const {
  const HostPort at = HostPort::parse(socket_.address().substr(std::string_view("tcp:").size()));
  if (!at.is_any()) return at.str();
  const auto told = first_host_address(at.is_ipv4());
  if (!told)
    throw_error(ErrorCode::invalid_argument,
                "the address to listen at is {}, and this host has no address that others reach: name an "
                "address of this host",
                at.str());
  return HostPort{told->host, at.port}.str();
}

/// Accepts some connections; if many arrive at once, the rest waits for the loop's next turn.
void TlsListener::accept() noexcept {
  constexpr int kInATurn = 64;
  try {
    for (int i = 0; i < kInATurn; ++i) {
      auto socket = socket_.try_accept();
      if (!socket) {
        is_short_ = false;
        return;
      }
      greet(*std::move(socket));
    }
    loop_.rearm(socket_.fd());
    is_short_ = false;
  } catch (const std::exception& error) {  // out of descriptors: the kernel reports the connection once
    if (!std::exchange(is_short_, true))
      log_warning(fmt::format("a connection from another host could not be accepted: {}", error.what()));
    point("rpc.accept.failed");
    options_.watch();
  }
}

void TlsListener::greet(StreamSocket socket) {
  const std::string host = host_of(socket.fd());
  std::byte first;
  const ssize_t peeked = ::recv(socket.fd(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (peeked == 0 || !make_room_for(host, peeked == 1)) return;
  const int fd = socket.fd();
  auto stream = std::make_unique<TlsStream>(options_.context, std::move(socket), Side::listener);
  strangers_.push_back(
      {std::move(stream), host, peeked == 1, Deadline::after(kGrace), Deadline::after(kPatience)});
  const At stranger = std::prev(strangers_.end());
  try {
    loop_.add(
        fd, [this, stranger] { receive(stranger); }, true);
  } catch (const std::exception&) {
    strangers_.erase(stranger);
    throw;
  }
  options_.watch();
}

/// Returns whether there is room for another stranger. If there are too many, drops a silent one, of the same address
/// if that address has too many: after kGrace, or at once for a newcomer that has already sent bytes. A newcomer that
/// is refused may try again.
bool TlsListener::make_room_for(const std::string& host, bool has_spoken) {
  const auto is_neighbour = [&](const Stranger& other) { return other.host == host; };
  const auto neighbours = static_cast<std::size_t>(std::ranges::count_if(strangers_, is_neighbour));
  if (neighbours < kMaxOfAnAddress && strangers_.size() < kMaxStrangers) return true;
  const auto can_go = [&](const Stranger& other) {
    return !other.has_spoken && (neighbours < kMaxOfAnAddress || is_neighbour(other)) &&
           (has_spoken || other.grace.has_passed());
  };
  const At oldest = std::ranges::find_if(strangers_, can_go);
  if (oldest == strangers_.end()) return false;
  drop(oldest);
  return true;
}

void TlsListener::receive(At stranger) noexcept {
  bool is_proved = false;
  try {
    stranger->has_spoken = true;
    is_proved = stranger->stream->handshake();
    if (!is_proved) return;
  } catch (const std::exception& error) {
    if (refused_++ == 0)
      log_warning(fmt::format("a connection was refused: {}; further ones are only counted", error.what()));
  }
  auto stream = drop(stranger);
  if (is_proved) give(std::move(stream));
}

/// Gives a connection whose key was proved to the transport, which may be about to stop.
void TlsListener::give(std::unique_ptr<TlsStream> stream) const noexcept {
  try {
    options_.proved(std::move(stream));
  } catch (const std::exception& error) {
    log_debug(fmt::format("a connection from another host is not used: {}", error.what()));
  }
}

std::unique_ptr<TlsStream> TlsListener::drop(At stranger) noexcept {
  auto stream = std::move(stranger->stream);
  loop_.remove(stream->fd());
  strangers_.erase(stranger);
  return stream;
}

void TlsListener::poll() noexcept {
  for (auto at = strangers_.begin(); at != strangers_.end();) {
    const auto next = std::next(at);
    if (at->deadline.has_passed()) drop(at);
    at = next;
  }
  accept();
}

}  // namespace onecopy::transport
