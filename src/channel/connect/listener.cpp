// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/listener.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <vector>

#include "channel/connect/handshake.h"
#include "channel/connect/listener_events.h"
#include "core/moved_from.h"
#include "core/point.h"
#include "os/log.h"
#include "os/poll_once.h"

namespace onecopy {
namespace {

/// The time that a client has for its proof, and again for opening the pipe.
constexpr std::chrono::seconds kTimeout{10};
/// The time after which a client without a proof is dropped if others want its place.
constexpr std::chrono::milliseconds kGrace{300};

/// Returns the max number of clients without a proof. Each takes a descriptor, and the process needs some for other
/// purposes.
std::size_t max_unproven() noexcept {
  constexpr rlim_t kMax = 64;
  constexpr rlim_t kFewest = 4;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMax;
  return std::clamp<rlim_t>(limit.rlim_cur / 3, kFewest, kMax);
}

}  // namespace

/// The state of a listener. Clients prove themselves concurrently: the listener waits for none of them, and handles a
/// client once its next message is complete.
struct Listener::State {
  struct Client {
    Client(State& s, StreamSocket accepted) : state(s), socket(std::move(accepted)) {}
    Client& operator=(Client&&) = delete;
    ~Client() {
      if (ListenerEvents* here = state.events_here()) here->remove(socket.fd());
    }

    State& state;
    StreamSocket socket;
    handshake::Nonce nonce = random_value<handshake::Nonce>();
    TimePoint since = std::chrono::steady_clock::now();
    Deadline deadline = Deadline::after(kTimeout);
    std::array<std::byte, sizeof(handshake::Proof)> heard{};
    std::size_t heard_bytes = 0;
    std::optional<Pipe> ours{};          ///< set once the client has proved that it knows the key
    std::optional<PipeHandle> theirs{};  ///< keeps the client's end until the client has opened it
    bool is_over = false;

    bool hear(std::size_t wanted);
  };

  State(const std::string& address, ByteSpan k)
      : socket(StreamSocket::listen(address)), key(k.begin(), k.end()) {}
  std::optional<Pipe> accept(Deadline deadline);
  int ready_fd();
  std::optional<Pipe> accept_until(Deadline deadline);
  /// Returns null until this process is asked for the descriptor.
  ListenerEvents* events_here() noexcept;
  bool listens() const { return !is_starved && has_room(); }
  std::optional<StreamSocket> next_in_line();
  void accept_new();
  void greet(StreamSocket accepted);
  bool has_room() const;
  Deadline next_room() const;
  void make_room();
  bool wait(Deadline deadline);
  std::optional<Pipe> serve(Client& client);
  std::optional<Pipe> serve_or_drop(Client& client);
  void check_proof(Client& client);
  void refuse(const char* why);

  StreamSocket socket;
  Bytes key;
  std::optional<ListenerEvents> events;
  std::list<Client> clients;              ///< in the order of their arrival
  bool is_starved = false;                ///< there are no free descriptors, and a client waits for one
  std::atomic<std::uint64_t> refused{0};  ///< the number of refused clients
};

std::optional<Pipe> Listener::State::accept(Deadline deadline) {
  std::optional<Pipe> pipe = accept_until(deadline);
  if (ListenerEvents* watched = events_here()) watched->listen_until(listens(), next_room());
  return pipe;
}

int Listener::State::ready_fd() {
  if (events_here()) return events->fd();
  events.emplace(socket.fd());
  for (const Client& client : clients) events->add(client.socket.fd());
  events->listen_until(listens(), next_room());
  return events->fd();
}

ListenerEvents* Listener::State::events_here() noexcept {
  return events && events->is_ours() ? &*events : nullptr;
}

std::optional<Pipe> Listener::State::accept_until(Deadline deadline) {
  for (;;) {
    accept_new();
    for (auto at = clients.begin(); at != clients.end();) {
      Client& client = *at++;
      std::optional<Pipe> pipe = serve_or_drop(client);
      if (pipe) return pipe;
    }
    make_room();
    point("listener.turn");
    if (!wait(deadline)) return {};
  }
}

/// Accepts the next client. Leaves it waiting if there are no free descriptors, until present clients were served or
/// their time is over.
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

/// Accepts a few clients, so that present ones are served in between.
void Listener::State::accept_new() {
  constexpr int kATurn = 16;
  for (int i = 0; i < kATurn && has_room(); ++i) {
    auto accepted = next_in_line();
    if (!accepted) return;
    const auto peer = accepted->peer();
    if (peer && !peer->is_our_user) refuse("runs as another user");
    else greet(std::move(*accepted));
  }
}

void Listener::State::greet(StreamSocket accepted) {
  Client& client = clients.emplace_back(*this, std::move(accepted));
  if (ListenerEvents* watched = events_here()) watched->add(client.socket.fd());
  handshake::Greeting greeting{{}, client.nonce};
  std::memcpy(greeting.magic, handshake::kMagic, sizeof handshake::kMagic);
  try {
    handshake::send(client.socket, greeting);
  } catch (const Error&) {
    clients.pop_back();
  }
}

bool Listener::State::has_room() const {
  const auto unproven =
      std::count_if(clients.begin(), clients.end(), [](const Client& c) { return !c.ours; });
  return static_cast<std::size_t>(unproven) < max_unproven();
}

/// Drops clients that have proved nothing for a while, because clients that wait in the backlog may know the key. A
/// client that is dropped too early tries again (ConnectionAttempt).
void Listener::State::make_room() {
  if (has_room() && !is_starved) return;
  const TimePoint now = std::chrono::steady_clock::now();
  clients.remove_if([&](const Client& c) { return !c.ours && now - c.since > kGrace; });
}

/// Returns when the oldest client that has not proved itself may be dropped.
Deadline Listener::State::next_room() const {
  const auto oldest = std::find_if(clients.begin(), clients.end(), [](const Client& c) { return !c.ours; });
  return oldest == clients.end() ? kForever : oldest->since + kGrace;
}

/// Waits for an event; returns false if the deadline has passed.
bool Listener::State::wait(Deadline deadline) {
  constexpr std::chrono::milliseconds kSlice{100};
  const std::chrono::milliseconds left = deadline.whole_ms_left(kSlice);
  if (left == std::chrono::milliseconds{0}) return false;
  const bool has_room_now = listens();  // otherwise the socket would be ready all the time
  const std::chrono::milliseconds slice =
      has_room_now ? left : next_room().whole_ms_left(left) + std::chrono::milliseconds{1};
  std::vector<pollfd> fds;
  if (has_room_now) fds.push_back({socket.fd(), POLLIN, 0});
  for (const Client& client : clients) fds.push_back({client.socket.fd(), POLLIN, 0});
  poll_once(fds, static_cast<int>(slice.count()));
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
  if (!client.hear(client.ours ? sizeof(handshake::OpenReply) : sizeof(handshake::Proof))) {
    client.is_over = client.is_over || std::chrono::steady_clock::now() > client.deadline;
    return {};
  }
  if (!client.ours) {
    check_proof(client);
    return {};
  }
  client.is_over = true;
  return std::move(client.ours);
}

/// Reads the bytes that have arrived, so that a part of a message causes no further wake-up. Returns true once `wanted`
/// bytes are there.
bool Listener::State::Client::hear(std::size_t wanted) {
  while (heard_bytes < wanted) {
    const ssize_t got = ::recv(socket.fd(), heard.data() + heard_bytes, wanted - heard_bytes, MSG_DONTWAIT);
    if (got > 0) heard_bytes += static_cast<std::size_t>(got);
    else if (got == 0 || (errno != EINTR && errno != EAGAIN)) return is_over = true, false;
    else if (errno == EAGAIN) return false;
  }
  heard_bytes = 0;
  return true;
}

void Listener::State::check_proof(Client& client) {
  const auto proof = load<handshake::Proof>(client.heard.data());
  if (!is_proof(proof.digest, prove(key, "client", client.nonce, proof.nonce))) {
    client.is_over = true;
    refuse("does not know its key");
    handshake::send(client.socket, handshake::Verdict{});
    return;
  }
  auto [ours, theirs] = Pipe::create();
  point("listener.pipe_made");
  client.theirs = theirs.handle();
  const std::string text = client.theirs->to_text();
  handshake::send(client.socket, handshake::Verdict{static_cast<std::uint32_t>(text.size()),
                                                    prove(key, "listener", proof.nonce, client.nonce)});
  client.socket.send_all(std::as_bytes(std::span(text)), handshake::kAtOnce);
  point("listener.pipe_sent");
  client.ours = std::move(ours);
  client.deadline = Deadline::after(kTimeout);
}

/// Counts a refused client. Logs only the first one, because any user of the host may connect to a TCP port any number
/// of times.
void Listener::State::refuse(const char* why) {
  if (refused.fetch_add(1) != 0) return;
  log_warning("a client of the listener at {} {} and was refused; further ones are only counted",
              socket.address(), why);
}

Listener::Listener(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Listener::Listener(Listener&&) noexcept = default;
Listener& Listener::operator=(Listener&&) noexcept = default;
Listener::~Listener() = default;

Listener Listener::listen(const std::string& address, ByteSpan key) {
  handshake::check_key(key);
  return Listener(std::make_unique<State>(address, key));
}

Listener::State& Listener::state() const { return of_object(state_, "Listener"); }

const std::string& Listener::address() const { return state().socket.address(); }

std::uint64_t Listener::refused() const { return state().refused.load(); }

Pipe Listener::accept() { return std::move(*state().accept(kForever)); }

int Listener::ready_fd() const { return state().ready_fd(); }

std::optional<Pipe> Listener::try_accept(std::chrono::milliseconds timeout) {
  return state().accept(Deadline::after(timeout));
}

}  // namespace onecopy
