// SPDX-License-Identifier: Apache-2.0
// How a call to another process's broker begins.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "core/throw_error.h"
#include "share/borrower/broker_client.h"
#include "share/format/process_name.h"

namespace onecopy {
namespace {

constexpr unsigned kRoot = 0;  // the user that can become another

thread_local std::optional<Dial>* early_dial = nullptr;

[[noreturn]] void refuse_other_user(unsigned uid) {
  throw_error(ErrorCode::other_user,
              "the owner of this handle {}: memory is shared within one user only (or the owner has "
              "ended and that user has taken its name)",
              describe_other_user(uid));
}

/// Connects again when the listener, which was root when it began to listen, has closed the first connection: if it has
/// become another user since, it listens as that user before it does so.
UnixSocket connect_after_change_of_user(UnixSocket first, const SocketName& name,
                                        std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kTurn{50};  // for a caller that does not wait for a stopped process
  first.end_sending();
  try {
    first.receive(std::max(patience, kTurn));
  } catch (const Error& e) {
    if (e.code() == ErrorCode::peer_died) return UnixSocket::connect(name, patience);
  }
  return first;
}

UnixSocket connect_to_our_user(const SocketName& name, std::chrono::milliseconds patience) {
  UnixSocket socket = UnixSocket::connect(name, patience);
  if (const PeerCredentials peer = socket.peer(); !peer.is_our_user && peer.uid == kRoot)
    socket = connect_after_change_of_user(std::move(socket), name, patience);
  if (const PeerCredentials peer = socket.peer(); !peer.is_our_user) refuse_other_user(peer.uid);
  return socket;
}

}  // namespace

UnixSocket dial(const std::string& name, std::chrono::milliseconds patience) {
  const SocketName to = socket_name(name);
  for (auto wait = std::chrono::milliseconds(0);; wait = patience) {
    try {
      return connect_to_our_user(to, wait);
    } catch (const Error& e) {  // its queue is full; it may be another user's socket
      if (e.code() != ErrorCode::timeout) throw;
      const auto user = to.abstract ? listening_user(to.text) : std::nullopt;
      if (user && *user != geteuid() && *user != kRoot) refuse_other_user(*user);
      if (wait == patience) throw;
    }
  }
}

Dial::Dial(const ProcessId& called, std::chrono::milliseconds patience)
    : to(called), name(public_name(called)), socket(dial(name, patience)), credentials(socket.peer()) {
  socket.send(greeting.hello(), {}, patience);
}

EarlyDial::EarlyDial(const ProcessId& to) noexcept {
  if (early_dial) return;
  try {
    call_.emplace(to, std::chrono::milliseconds(0));
    early_dial = &call_;
  } catch (const std::exception&) {  // see above
  }
}

EarlyDial::~EarlyDial() {
  if (call_) early_dial = nullptr;  // no connection has continued the call
}

bool EarlyDial::is_waiting() noexcept { return early_dial != nullptr; }

std::optional<Dial> EarlyDial::take(const ProcessId& to) noexcept {
  if (!early_dial || (*early_dial)->to != to) return {};
  return std::exchange(*std::exchange(early_dial, nullptr), {});
}

void acknowledge_to(const ProcessId& maker, std::uint64_t hold) noexcept {
  constexpr std::chrono::milliseconds kTimeout{100};  // for a socket whose queue is full
  try {
    dial(public_name(maker), kTimeout).try_send(wire::pack(wire::Acknowledge{hold}));
  } catch (const std::exception&) {  // the process is gone with its holds, or they will expire
  }
}

}  // namespace onecopy
