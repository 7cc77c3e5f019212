// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/listener.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>

#include "channel/handshake.h"
#include "onecopy/core/point.h"
#include "onecopy/os/log.h"

namespace onecopy {
namespace {

/// A client has this long for its proof, and again for opening the pipe.
constexpr std::chrono::seconds kPatience{10};

}  // namespace

/// Clients prove themselves side by side: nobody is waited for, each is looked at when it has said all
/// that it has to say next.
struct Listener::State {
  struct Client {
    StreamSocket socket;
    handshake::Nonce nonce = handshake::new_nonce();
    TimePoint deadline = deadline_after(kPatience);
    std::optional<Pipe> ours{};          ///< once it has proved itself
    std::optional<PipeHandle> theirs{};  ///< keeps its end until it has opened it
    bool is_slow = false;                ///< a part of a message is there, the rest is not
    bool is_over = false;
  };

  State(const std::string& address, ByteSpan k)
      : socket(StreamSocket::listen(address)), key(k.begin(), k.end()) {}
  std::optional<Pipe> accept(TimePoint deadline);
  std::optional<StreamSocket> next_in_line();
  void accept_new();
  bool wait(TimePoint deadline);
  std::optional<Pipe> serve(Client& client);
  std::optional<Pipe> serve_or_drop(Client& client);
  void check_proof(Client& client);

  StreamSocket socket;
  Bytes key;
  std::list<Client> clients;
  bool is_starved = false;  ///< of descriptors, and somebody waits for one
};

std::optional<Pipe> Listener::State::accept(TimePoint deadline) {
  for (;;) {
    accept_new();
    for (auto at = clients.begin(); at != clients.end();) {
      Client& client = *at++;
      std::optional<Pipe> pipe = serve_or_drop(client);
      if (pipe) return pipe;
    }
    if (!wait(deadline)) return {};
  }
}

/// Without descriptors it is left to wait: those that there are are served, or their time runs out.
std::optional<StreamSocket> Listener::State::next_in_line() {
  try {
    is_starved = true;
    auto accepted = socket.try_accept();
    is_starved = false;
    return accepted;
  } catch (const Error& error) {
    if (clients.empty() || error.code() != ErrorCode::out_of_descriptors) throw;
    return {};
  }
}

void Listener::State::accept_new() {
  while (auto accepted = next_in_line()) {
    clients.push_back({std::move(*accepted)});
    Client& client = clients.back();
    handshake::Greeting greeting{{}, client.nonce};
    std::memcpy(greeting.magic, handshake::kMagic, sizeof handshake::kMagic);
    try {
      handshake::send(client.socket, greeting);
    } catch (const Error&) {
      clients.pop_back();
    }
  }
}

/// Until something happens; false when the deadline has passed.
bool Listener::State::wait(TimePoint deadline) {
  constexpr std::chrono::milliseconds kSlice{100};
  constexpr std::chrono::milliseconds kSlow{5};
  std::chrono::milliseconds most = kSlice;
  std::vector<pollfd> fds;
  if (!is_starved) fds.push_back({socket.fd(), POLLIN, 0});  // else it would be ready without end
  for (const Client& client : clients) {
    if (client.is_slow) most = kSlow;
    else fds.push_back({client.socket.fd(), POLLIN, 0});
  }
  const std::chrono::milliseconds slice = handshake::whole_ms_left(deadline, most);
  if (slice == std::chrono::milliseconds{0}) return false;
  if (::poll(fds.data(), fds.size(), static_cast<int>(slice.count())) < 0 && errno != EINTR)
    throw_errno("poll of a listener", errno);
  return true;
}

std::optional<Pipe> Listener::State::serve_or_drop(Client& client) {
  std::optional<Pipe> pipe;
  const auto drop = [&] { clients.remove_if([&](const Client& c) { return &c == &client; }); };
  try {
    pipe = serve(client);
  } catch (const Error& error) {
    drop();
    if (error.code() == ErrorCode::peer_died || error.code() == ErrorCode::timeout) return {};
    throw;
  }
  if (client.is_over) drop();
  return pipe;
}

std::optional<Pipe> Listener::State::serve(Client& client) {
  const std::size_t wanted = client.ours ? sizeof(handshake::Opened) : sizeof(handshake::Proof);
  const std::size_t waiting = handshake::bytes_waiting(client.socket);
  client.is_slow = waiting > 0 && waiting < wanted;
  if (waiting < wanted) {
    pollfd hangup{client.socket.fd(), POLLIN, 0};
    const bool readable = ::poll(&hangup, 1, 0) > 0;
    const bool ended = readable && waiting == 0 && handshake::bytes_waiting(client.socket) == 0;
    client.is_over = ended || std::chrono::steady_clock::now() > client.deadline;
    return {};
  }
  if (!client.ours) {
    check_proof(client);
    return {};
  }
  handshake::receive<handshake::Opened>(client.socket);
  client.is_over = true;
  return std::move(client.ours);
}

void Listener::State::check_proof(Client& client) {
  const auto proof = handshake::receive<handshake::Proof>(client.socket);
  if (!handshake::is_same(proof.digest, handshake::prove(key, "client", client.nonce, proof.nonce))) {
    handshake::send(client.socket, handshake::Verdict{});
    throw Error(ErrorCode::bad_secret, "a client does not know this listener's key; it was refused");
  }
  auto [ours, theirs] = Pipe::create();
  point("listener.pipe_made");
  client.theirs = theirs.handle();
  const std::string text = client.theirs->to_text();
  handshake::send(client.socket,
                  handshake::Verdict{static_cast<std::uint32_t>(text.size()),
                                     handshake::prove(key, "listener", proof.nonce, client.nonce)});
  client.socket.send_all(std::as_bytes(std::span(text)), handshake::kAtOnce);
  point("listener.pipe_sent");
  client.ours = std::move(ours);
  client.deadline = deadline_after(kPatience);
}

Listener::Listener(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Listener::Listener(Listener&&) noexcept = default;
Listener& Listener::operator=(Listener&&) noexcept = default;
Listener::~Listener() = default;

Listener Listener::listen(const std::string& address, ByteSpan key) {
  handshake::check_key(key);
  return Listener(std::make_unique<State>(address, key));
}

const std::string& Listener::address() const noexcept { return state_->socket.address(); }

Pipe Listener::accept() { return std::move(*state_->accept(kForever)); }

std::optional<Pipe> Listener::try_accept(std::chrono::milliseconds timeout) {
  return state_->accept(handshake::until(timeout));
}

}  // namespace onecopy
