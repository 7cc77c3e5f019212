// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "channel/connect/handshake.h"
#include "core/moved_from.h"
#include "core/point.h"
#include "core/throw_error.h"
#include "onecopy/channel/listener.h"
#include "os/poll_once.h"

namespace onecopy {

/// The state of an attempt. What the listener sends is one sequence of bytes, and each call receives more of it.
struct ConnectionAttempt::State {
  State(std::string a, ByteSpan k) : address(std::move(a)), key(k.begin(), k.end()) {}
  std::optional<Pipe> finish(Deadline deadline);
  std::optional<Pipe> go_on(Deadline deadline);
  bool was_dropped() const;
  void start_again();
  bool reach(Deadline deadline);
  void check_user() const;
  bool hear(std::size_t bytes, Deadline deadline);
  void prove_ourselves();
  std::size_t check_verdict() const;

  std::string address;
  Bytes key;
  handshake::Nonce nonce = random_value<handshake::Nonce>();
  StreamSocket socket;
  Bytes heard;
  bool is_greeted = false;  ///< a listener of onecopy has sent its greeting
  bool has_proved = false;
  int turns = 0;  ///< connections that the listener ended early
};

std::optional<Pipe> ConnectionAttempt::State::finish(Deadline deadline) {
  for (;;) {
    try {
      return go_on(deadline);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_died || !was_dropped()) throw;
      start_again();
    }
  }
}

/// Returns whether the listener has dropped this client, which a listener with too many clients does to slow ones.
bool ConnectionAttempt::State::was_dropped() const {
  constexpr int kMaxTurns = 20;  // a server that drops all clients is not a listener of onecopy
  return is_greeted && heard.size() == sizeof(handshake::Greeting) && turns < kMaxTurns;
}

void ConnectionAttempt::State::start_again() {
  ++turns;
  socket = StreamSocket();
  heard.clear();
  nonce = random_value<handshake::Nonce>();
  is_greeted = has_proved = false;
}

std::optional<Pipe> ConnectionAttempt::State::go_on(Deadline deadline) {
  constexpr std::size_t kText = sizeof(handshake::Greeting) + sizeof(handshake::Verdict);
  if (!reach(deadline) || !hear(sizeof(handshake::Greeting), deadline)) return {};
  if (!has_proved) prove_ourselves();
  if (!hear(kText, deadline)) return {};
  const std::size_t text_bytes = check_verdict();
  if (!hear(kText + text_bytes, deadline)) return {};
  const std::string text(reinterpret_cast<const char*>(heard.data()) + kText, text_bytes);
  Pipe pipe = Pipe::connect(PipeHandle::from_text(text));
  point("listener.pipe_opened");
  handshake::send(socket, handshake::OpenReply{1});
  return pipe;
}

bool ConnectionAttempt::State::reach(Deadline deadline) {
  if (socket) return true;
  try {
    socket = StreamSocket::connect(address, deadline.whole_ms_left(std::chrono::hours(1)));
  } catch (const Error& error) {  // the listener's backlog is full
    if (error.code() != ErrorCode::timeout) throw;
  }
  if (socket) check_user();
  return static_cast<bool>(socket);
}

/// Throws if the listener belongs to another user, with whom no pipe can be made. Over TCP the user is unknown.
void ConnectionAttempt::State::check_user() const {
  const auto peer = socket.peer();
  if (!peer || peer->is_our_user) return;
  throw_error(ErrorCode::other_user, "the listener at {} {}: pipes are within one user only", address,
              describe_other_user(peer->uid));
}

/// Receives until `bytes` bytes have arrived. Returns false if the deadline passes before that.
bool ConnectionAttempt::State::hear(std::size_t bytes, Deadline deadline) {
  while (heard.size() < bytes) {
    pollfd readable{socket.fd(), POLLIN, 0};
    const int ready =
        poll_once({&readable, 1}, static_cast<int>(deadline.whole_ms_left(handshake::kAtOnce).count()));
    if (ready == 0 && deadline.left(handshake::kAtOnce) == std::chrono::nanoseconds{0}) return false;
    if (ready == 0) continue;
    const std::size_t before = heard.size();
    const std::size_t more = std::clamp<std::size_t>(handshake::bytes_waiting(socket), 1, bytes - before);
    heard.resize(before + more);
    // Notices the end of the connection.
    socket.receive_exactly(std::span(heard).subspan(before), handshake::kAtOnce);
  }
  return true;
}

void ConnectionAttempt::State::prove_ourselves() {
  const auto greeting = load<handshake::Greeting>(heard.data());
  if (std::memcmp(greeting.magic, handshake::kMagic, sizeof handshake::kMagic) != 0)
    throw_error(ErrorCode::protocol, "at {} listens something that is not onecopy", address);
  is_greeted = true;
  handshake::send(socket, handshake::Proof{nonce, prove(key, "client", greeting.nonce, nonce)});
  has_proved = true;
}

/// Checks the listener's verdict. Returns the number of bytes of text that follow.
std::size_t ConnectionAttempt::State::check_verdict() const {
  const auto verdict = load<handshake::Verdict>(heard.data() + sizeof(handshake::Greeting));
  if (!is_proof(verdict.digest,
                prove(key, "listener", nonce, load<handshake::Greeting>(heard.data()).nonce)))
    throw_error(ErrorCode::bad_secret, "the listener at {} has another key", address);
  if (verdict.text_bytes > handshake::kMaxText)
    throw_error(ErrorCode::protocol, "a pipe's handle of {} bytes", verdict.text_bytes);
  return verdict.text_bytes;
}

ConnectionAttempt::ConnectionAttempt(const std::string& address, ByteSpan key) {
  handshake::check_key(key);
  state_ = std::make_unique<State>(address, key);
}
ConnectionAttempt::ConnectionAttempt(ConnectionAttempt&&) noexcept = default;
ConnectionAttempt& ConnectionAttempt::operator=(ConnectionAttempt&&) noexcept = default;
ConnectionAttempt::~ConnectionAttempt() = default;

std::optional<Pipe> ConnectionAttempt::try_finish(std::chrono::milliseconds timeout) {
  return of_object(state_, "ConnectionAttempt").finish(Deadline::after(timeout));
}

Pipe connect(const std::string& address, ByteSpan key, std::chrono::milliseconds timeout) {
  if (auto pipe = ConnectionAttempt(address, key).try_finish(timeout)) return *std::move(pipe);
  throw_error(ErrorCode::timeout, "the listener at {} did not answer within {} ms", address,
              timeout.count());
}

}  // namespace onecopy
