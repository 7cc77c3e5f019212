// SPDX-License-Identifier: Apache-2.0
#include "rpc/far/far_client.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "onecopy/core/error.h"
#include "os/log.h"

namespace onecopy::rpc {
namespace {

constexpr char kFarMagic[8] = {'1', 'C', 'O', 'P', 'Y', 'R', '0', '1'};
constexpr std::size_t kMostClients = 64;
constexpr std::uint32_t kWelcome = 1;

FrameKeys keys_of(ByteSpan key, const handshake::Nonce& listener, const handshake::Nonce& client) {
  return FrameKeys::of_session(prove(key, "rpc session", listener, client));
}

template <class T>
T receive(StreamSocket& socket, Deadline deadline) {
  T value;
  socket.receive_exactly(std::as_writable_bytes(std::span(&value, 1)),
                         deadline.whole_ms_left(std::chrono::hours(1)));
  return value;
}

[[noreturn]] void throw_wrong_key(const HostPort& listener) {
  throw Error(
      ErrorCode::bad_secret,
      fmt::format("the member of the group at {} has another key: give all members one ONECOPY_RPC_KEY",
                  listener.str()));
}

struct HelloHead {
  std::uint64_t host = 0, start_time = 0;  ///< of the process that is wanted
  std::int32_t pid = 0;
  std::uint32_t number = 0;
};
static_assert(sizeof(HelloHead) == 24);

HelloHead wanted(const Address& to) { return {to.host, to.start_time, to.pid, to.number}; }

}  // namespace

std::vector<FarClients::Connection> FarClients::serve() {
  accept_new();
  std::vector<Connection> proved;
  for (auto at = clients_.begin(); at != clients_.end();) {
    bool is_over = true;
    try {
      is_over = !hear(*at);
      if (at->heard_bytes == at->heard.size()) {
        is_over = true;
        poller_.remove(at->socket.fd());
        if (auto found = judge(*at)) proved.push_back(*std::move(found));
      }
    } catch (const Error& error) {
      log_debug(fmt::format("a client from another host has ended: {}", error.what()));
    }
    if (is_over && at->socket) poller_.remove(at->socket.fd());
    at = is_over ? clients_.erase(at) : std::next(at);
  }
  return proved;
}

void FarClients::accept_new() {
  try {
    while (auto socket = listener_.try_accept()) greet(*std::move(socket));
  } catch (const Error& error) {
    log_warning(fmt::format("a client from another host could not be accepted: {}", error.what()));
  }
}

/// The oldest one makes room.
void FarClients::greet(StreamSocket socket) {
  if (clients_.size() >= kMostClients) {
    poller_.remove(clients_.front().socket.fd());
    clients_.pop_front();
  }
  Client& client = clients_.emplace_back(Client{std::move(socket)});
  poller_.add(client.socket.fd(), token_);
  handshake::Greeting greeting{};
  std::memcpy(greeting.magic, kFarMagic, sizeof kFarMagic);
  greeting.nonce = client.nonce;
  handshake::send(client.socket, greeting);
}

bool FarClients::hear(Client& client) {
  while (client.heard_bytes < client.heard.size()) {
    const ssize_t got = ::recv(client.socket.fd(), client.heard.data() + client.heard_bytes,
                               client.heard.size() - client.heard_bytes, MSG_DONTWAIT);
    if (got > 0) client.heard_bytes += static_cast<std::size_t>(got);
    else if (got == 0 || (errno != EINTR && errno != EAGAIN)) return false;
    else if (errno == EAGAIN) return !client.deadline.has_passed();
  }
  return true;
}

std::optional<FarClients::Connection> FarClients::judge(Client& client) {
  const auto proof = load<handshake::Proof>(client.heard.data());
  if (!is_proof(proof.digest, prove(key_, "rpc client", client.nonce, proof.nonce))) {
    if (refused_++ == 0)
      log_warning(
          "a process that does not know the group's key was refused; further ones are only counted");
    handshake::send(client.socket, handshake::Verdict{});
    return {};
  }
  handshake::send(client.socket,
                  handshake::Verdict{kWelcome, prove(key_, "rpc listener", proof.nonce, client.nonce)});
  return Connection{std::move(client.socket), keys_of(key_, client.nonce, proof.nonce),
                    std::move(client.unshared)};
}

FarClients::Connection prove_to(const HostPort& listener, ByteSpan key, Deadline deadline) {
  using namespace std::chrono_literals;
  StreamSocket socket = StreamSocket::connect(listener, deadline.whole_ms_left(1h));
  UnsharedDescriptor unshared(socket.fd());
  const auto greeting = receive<handshake::Greeting>(socket, deadline);
  if (std::memcmp(greeting.magic, kFarMagic, sizeof kFarMagic) != 0)
    throw Error(ErrorCode::protocol,
                fmt::format("the process at {} is no member of a group", listener.str()));
  const handshake::Nonce nonce = make_nonce<handshake::Nonce>();
  handshake::send(socket, handshake::Proof{nonce, prove(key, "rpc client", greeting.nonce, nonce)});
  const auto verdict = receive<handshake::Verdict>(socket, deadline);
  const Digest right = prove(key, "rpc listener", nonce, greeting.nonce);
  if (verdict.text_bytes != kWelcome || !is_proof(verdict.digest, right)) throw_wrong_key(listener);
  return {std::move(socket), keys_of(key, greeting.nonce, nonce), std::move(unshared)};
}

Bytes encode_hello(const Address& to, const Address& own) {
  Bytes out(sizeof(HelloHead));
  store(out.data(), wanted(to));
  const Bytes address = own.to_bytes();
  out.insert(out.end(), address.begin(), address.end());
  return out;
}

Address decode_hello(ByteSpan hello, const Address& own) {
  if (hello.size() < sizeof(HelloHead)) refuse_frame("is too short to say who sends");
  const auto head = load<HelloHead>(hello.data());
  const HelloHead right = wanted(own);
  if (std::memcmp(&head, &right, sizeof head) != 0)
    refuse_frame("was meant for another process, which listened here before");
  return Address::from_bytes(hello.subspan(sizeof head));
}

}  // namespace onecopy::rpc
