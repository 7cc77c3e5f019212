// SPDX-License-Identifier: Apache-2.0
// How a member of another host is reached: who is refused before, and how often it is tried.
#include <fmt/format.h>

#include <memory>
#include <thread>
#include <utility>

#include "core/throw_error.h"
#include "os/log.h"
#include "rpc/hosts/endpoint.h"
#include "rpc/hosts/tls_transport.h"

namespace onecopy::rpc {

using namespace std::chrono_literals;

std::shared_ptr<const TlsContext> TlsTransport::context() {
  const LockGuard lock(mutex_);
  if (!context_) context_ = std::make_shared<const TlsContext>(options_.key);
  return context_;
}

TlsLinkRef TlsTransport::make_link(std::unique_ptr<TlsStream> stream, Side side) const {
  return std::make_shared<TlsLink>(std::move(stream), side, options_.peer_timeout,
                                   [&loop = *loop_](int fd) { loop.rearm(fd); });
}

/// Refuses a member that has another key or talks over another fabric. Both of two members see it in the other's address,
/// before they connect, so each of them learns the reason.
void TlsTransport::watch(Member& member) {
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    throw_error(code, "{} {}", member.name(), why);
  };
  const std::string set_key =
      "set ONECOPY_RPC_KEY to one secret of the group in all members (`onecopy key` prints a new one)";
  if (member.address.endpoint.empty())
    refuse(ErrorCode::unsupported, "is on another host, and listens for no other hosts: " + set_key);
  const Endpoint there = Endpoint::parse(member.address.endpoint);
  if (there.fabric != name())
    refuse(ErrorCode::unsupported, fmt::format("talks to other hosts over {}, and this process over {}: "
                                               "set ONECOPY_RPC_FABRIC to one value in "
                                               "all members of the group",
                                               there.fabric, name()));
  if (there.key_check != check_of_key(options_.key))
    refuse(ErrorCode::bad_secret, options_.key.empty()
                                      ? "has a key, and this process has none: " + set_key
                                      : "has another key: give all members one ONECOPY_RPC_KEY");
  member.state = std::make_unique<State>();
}

void TlsTransport::open(Member& to, Deadline deadline) {
  {
    const LockGuard lock(to.opening);
    if (!to.state || to.has_ended || std::exchange(state_of(to).is_connecting, true)) return;
  }
  try {
    auto peer = std::make_shared<TlsPeer>();
    peer->link = reach(to, deadline);
    take_link(to, peer);
    add(peer);
  } catch (...) {
    const LockGuard lock(to.opening);
    if (to.state) state_of(to).is_connecting = false;
    throw;
  }
}

/// Returns for how long this process tries to reach a member, over TCP and then over the fabric.
std::chrono::milliseconds TlsTransport::patience() const noexcept {
  constexpr std::chrono::milliseconds kMin{10'000};
  return std::max(kMin, options_.peer_timeout);
}

TlsLinkRef TlsTransport::connect(const Member& to, Deadline deadline) {
  const Address& address = to.address;
  const Deadline until = std::min(deadline, Deadline::after(patience()));
  TlsLinkRef link =
      make_link(prove_to(HostPort::parse(Endpoint::parse(address.endpoint).at), until), Side::client);
  link->put_frame(transport::FrameKind::hello, encode_hello(address, {host_.address(), to.session}));
  return link;
}

/// Connects to a member, which errors name. Reports a member that was cut off and cannot be reached as peer_died, so that
/// the call fails and its caller decides whether to call again.
TlsLinkRef TlsTransport::reach(const Member& to, Deadline deadline) {
  try {
    return connect(to, deadline);
  } catch (const Error& error) {
    const bool is_again = to.is_reconnected();
    const bool is_away = error.code() == ErrorCode::peer_died ||
                         (is_again && (error.code() == ErrorCode::system ||
                                       (error.code() == ErrorCode::timeout && !deadline.has_passed())));
    if (!is_away) throw;
    const std::string what =
        is_again ? fmt::format("the connection to {} has ended, and there is no new one: ", to.name())
                 : fmt::format("{} cannot be reached: ", to.name());
    throw Error(ErrorCode::peer_died, what + error.what(), error.vendor_code(), error.domain());
  }
}

/// Connects and proves the key. A listener that has too many strangers refuses some of them, so a refused process tries
/// again.
std::unique_ptr<TlsStream> TlsTransport::prove_to(const HostPort& at, Deadline deadline) {
  constexpr std::chrono::milliseconds kPause{20};
  for (;;) {
    StreamSocket socket = StreamSocket::connect(at, deadline.whole_ms_left(1h));
    auto stream = std::make_unique<TlsStream>(context(), std::move(socket), Side::client);
    try {
      stream->handshake(deadline);
      return stream;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_died || deadline.left(kPause) < kPause || host_.is_stopped())
        throw;
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace onecopy::rpc
