// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/listener.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <string_view>

#include "channel/ring_wait.h"
#include "onecopy/core/error.h"
#include "onecopy/core/point.h"
#include "onecopy/os/hmac.h"
#include "onecopy/os/log.h"
#include "onecopy/os/random.h"
#include "onecopy/os/stream_socket.h"

namespace onecopy {
namespace {

using std::chrono::milliseconds;
using Nonce = std::array<std::uint8_t, 32>;

constexpr char kGreetingMagic[8] = {'1', 'C', 'O', 'P', 'Y', 'L', '0', '1'};
/// A client has this long for its proof, and again for opening the pipe.
constexpr std::chrono::seconds kPatience{10};
constexpr milliseconds kAtOnce{1000};
constexpr std::uint32_t kMostText = 16'384;

// What is said, in this order.
struct Greeting {  // listener
  char magic[8];
  Nonce nonce;
};
struct Proof {  // client
  Nonce nonce;
  Digest digest;
};
struct Verdict {  // listener; the text of a pipe's handle follows if the client knows the key
  std::uint32_t text_bytes;
  Digest digest;
};
struct Opened {  // client
  std::uint8_t yes;
};

template <class T>
void send(StreamSocket& socket, const T& value, milliseconds timeout) {
  socket.send_all(std::as_bytes(std::span(&value, 1)), timeout);
}

template <class T>
T receive(StreamSocket& socket, milliseconds timeout) {
  T value;
  socket.receive_exactly(std::as_writable_bytes(std::span(&value, 1)), timeout);
  return value;
}

Nonce new_nonce() {
  Nonce nonce;
  random_bytes(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

Digest prove(ByteSpan key, std::string_view who, const Nonce& theirs, const Nonce& mine) {
  Bytes message;
  const std::array<ByteSpan, 3> parts{std::as_bytes(std::span(who)), std::as_bytes(std::span(theirs)),
                                      std::as_bytes(std::span(mine))};
  for (const ByteSpan part : parts) message.insert(message.end(), part.begin(), part.end());
  return hmac_sha256(key, message);
}

bool is_same(const Digest& a, const Digest& b) {
  return equal_in_constant_time(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

void check_key(ByteSpan key) {
  if (key.empty())
    throw Error(ErrorCode::invalid_argument, "a listener and its clients need a key of at least one byte");
}

std::size_t bytes_waiting(const StreamSocket& socket) {
  int bytes = 0;
  return ::ioctl(socket.fd(), FIONREAD, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

}  // namespace

/// Clients prove themselves side by side: nobody is waited for, each is looked at when it has said all
/// that it has to say next.
struct Listener::State {
  struct Client {
    StreamSocket socket;
    Nonce nonce = new_nonce();
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
    Greeting greeting{{}, client.nonce};
    std::memcpy(greeting.magic, kGreetingMagic, sizeof kGreetingMagic);
    try {
      send(client.socket, greeting, kAtOnce);
    } catch (const Error&) {
      clients.pop_back();
    }
  }
}

/// Until something happens; false when the deadline has passed.
bool Listener::State::wait(TimePoint deadline) {
  constexpr milliseconds kSlice{100};
  constexpr milliseconds kSlow{5};
  milliseconds most = kSlice;
  std::vector<pollfd> fds;
  if (!is_starved) fds.push_back({socket.fd(), POLLIN, 0});  // else it would be ready without end
  for (const Client& client : clients) {
    if (client.is_slow) most = kSlow;
    else fds.push_back({client.socket.fd(), POLLIN, 0});
  }
  const auto left = time_left(deadline, most);
  if (left == std::chrono::nanoseconds{0}) return false;
  const auto slice = std::chrono::duration_cast<milliseconds>(left) + milliseconds{1};
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
  const std::size_t wanted = client.ours ? sizeof(Opened) : sizeof(Proof);
  const std::size_t waiting = bytes_waiting(client.socket);
  client.is_slow = waiting > 0 && waiting < wanted;
  if (waiting < wanted) {
    pollfd hangup{client.socket.fd(), POLLIN, 0};
    const bool readable = ::poll(&hangup, 1, 0) > 0;
    const bool ended = readable && waiting == 0 && bytes_waiting(client.socket) == 0;
    client.is_over = ended || std::chrono::steady_clock::now() > client.deadline;
    return {};
  }
  if (!client.ours) {
    check_proof(client);
    return {};
  }
  receive<Opened>(client.socket, kAtOnce);
  client.is_over = true;
  return std::move(client.ours);
}

void Listener::State::check_proof(Client& client) {
  const auto proof = receive<Proof>(client.socket, kAtOnce);
  if (!is_same(proof.digest, prove(key, "client", client.nonce, proof.nonce))) {
    send(client.socket, Verdict{}, kAtOnce);
    throw Error(ErrorCode::bad_secret, "a client does not know this listener's key; it was refused");
  }
  auto [ours, theirs] = Pipe::create();
  point("listener.pipe_made");
  client.theirs = theirs.handle();
  const std::string text = client.theirs->to_text();
  send(client.socket,
       Verdict{static_cast<std::uint32_t>(text.size()), prove(key, "listener", proof.nonce, client.nonce)},
       kAtOnce);
  client.socket.send_all(std::as_bytes(std::span(text)), kAtOnce);
  point("listener.pipe_sent");
  client.ours = std::move(ours);
  client.deadline = deadline_after(kPatience);
}

Listener::Listener(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Listener::Listener(Listener&&) noexcept = default;
Listener& Listener::operator=(Listener&&) noexcept = default;
Listener::~Listener() = default;

Listener Listener::listen(const std::string& address, ByteSpan key) {
  check_key(key);
  return Listener(std::make_unique<State>(address, key));
}

const std::string& Listener::address() const noexcept { return state_->socket.address(); }

namespace {

/// Without overflow of what is counted in nanoseconds.
TimePoint until(milliseconds timeout) {
  constexpr milliseconds kLongest = std::chrono::hours(24 * 365 * 100);
  return timeout > kLongest ? kForever : deadline_after(timeout);
}

}  // namespace

Pipe Listener::accept() { return std::move(*state_->accept(kForever)); }

std::optional<Pipe> Listener::try_accept(milliseconds timeout) { return state_->accept(until(timeout)); }

Pipe connect(const std::string& address, ByteSpan key, milliseconds timeout) {
  check_key(key);
  const TimePoint deadline = until(timeout);
  const auto left = [&] {
    return std::chrono::duration_cast<milliseconds>(time_left(deadline, std::chrono::hours(1)));
  };
  StreamSocket socket = StreamSocket::connect(address, timeout);
  const auto greeting = receive<Greeting>(socket, left());
  if (std::memcmp(greeting.magic, kGreetingMagic, sizeof kGreetingMagic) != 0)
    throw Error(ErrorCode::protocol, fmt::format("at {} listens something that is not onecopy", address));
  const Nonce mine = new_nonce();
  send(socket, Proof{mine, prove(key, "client", greeting.nonce, mine)}, left());
  const auto verdict = receive<Verdict>(socket, left());
  if (!is_same(verdict.digest, prove(key, "listener", mine, greeting.nonce)))
    throw Error(ErrorCode::bad_secret, fmt::format("the listener at {} has another key", address));
  if (verdict.text_bytes > kMostText)
    throw Error(ErrorCode::protocol, fmt::format("a pipe's handle of {} bytes", verdict.text_bytes));
  std::string text(verdict.text_bytes, '\0');
  socket.receive_exactly(std::as_writable_bytes(std::span(text)), left());
  Pipe pipe = Pipe::connect(PipeHandle::from_text(text));
  point("listener.pipe_opened");
  send(socket, Opened{1}, left());
  return pipe;
}

}  // namespace onecopy
