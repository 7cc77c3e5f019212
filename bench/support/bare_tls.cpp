// SPDX-License-Identifier: Apache-2.0
#include "support/bare_tls.h"

#include <fcntl.h>

#include <algorithm>
#include <array>

#include "onecopy/core/error.h"
#include "os/shared_library.h"

namespace onecopy::bench {
namespace {

using namespace std::chrono_literals;

void wait_in_calls(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

/// A function of OpenSSL that rpc does not use.
void set_descriptor(openssl::SSL* ssl, int fd) {
  const auto library = SharedLibrary::open({"libssl.so.3"});
  reinterpret_cast<int (*)(openssl::SSL*, int)>(library.value().symbol("SSL_set_fd"))(ssl, fd);
}

}  // namespace

BareTls::BareTls(StreamSocket socket, transport::Side side)
    : socket_(std::move(socket)),
      context_(std::make_unique<const transport::TlsContext>(ByteSpan{})),
      ssl_(context_->make(side)) {
  wait_in_calls(socket_.fd());
  set_descriptor(ssl_, socket_.fd());
  if (context_->library().SSL_do_handshake(ssl_) != 1)
    throw Error(ErrorCode::system, "the bare handshake failed: " + context_->library().take_error());
}

BareTls::~BareTls() { context_->library().SSL_free(ssl_); }

bool BareTls::read(void* into, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(into);
  while (bytes != 0) {
    const int got = context_->library().SSL_read(ssl_, at, static_cast<int>(bytes));
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

void BareTls::write(const void* from, std::size_t bytes) {
  if (context_->library().SSL_write(ssl_, from, static_cast<int>(bytes)) != static_cast<int>(bytes))
    throw Error(ErrorCode::peer_died, "the bare connection has ended");
}

void BareTls::send(std::uint64_t bytes, std::uint64_t count) {
  const std::array<std::uint64_t, 2> head{bytes, count};
  buffer_.resize(bytes);
  write(head.data(), sizeof head);
  for (std::uint64_t i = 0; i < count; ++i) write(buffer_.data(), bytes);
  std::byte done{};
  if (!read(&done, 1)) throw Error(ErrorCode::peer_died, "the bare connection has ended");
}

void BareTls::serve() {
  std::array<std::uint64_t, 2> head{};
  while (read(head.data(), sizeof head)) {
    buffer_.resize(head[0]);
    for (std::uint64_t i = 0; i < head[1]; ++i)
      if (!read(buffer_.data(), buffer_.size())) return;
    const std::byte done{1};
    write(&done, 1);
  }
}

BareTlsServer::BareTlsServer()
    : listener_(StreamSocket::listen(HostPort::of_ipv4(INADDR_ANY, kPort))),
      thread_([this] { BareTls(listener_.accept(60s), transport::Side::listener).serve(); }) {}

}  // namespace onecopy::bench
