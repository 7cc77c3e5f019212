// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "rpc/hosts/host_connection.h"
#include "rpc/hosts/tls_transport.h"

/// The part of TlsTransport that lets the messages of a member go over a fabric. Both sides make a channel, and tell each other
/// its address over TLS. A side that does not reach the other one over its channel makes another channel, and tells its
/// address: the other side then does the same. The number of the attempt says which channels belong together.
namespace onecopy::rpc {

/// Returns the fabric for a new connection. The fabric is made when a connection needs it, and made anew once it has failed to
/// reach a member: a fabric may know only the networks that were up when it was made.
std::shared_ptr<Fabric> TlsTransport::fabric() {
  const LockGuard lock(mutex_);
  if (is_over_) throw Error(ErrorCode::closed, "this process has left the group");
  if (fabric_ && has_missed_fabric_.exchange(false))
    old_fabrics_.push_back(std::exchange(fabric_, nullptr));
  if (!fabric_) fabric_ = transport::make_fabric(options_.fabric, *loop_, options_.peer_timeout);
  return fabric_;
}

/// Makes a channel, and tells the other side its address.
void TlsTransport::begin_fabric(const TlsPeerRef& peer, std::uint32_t attempt) {
  if (peer->channel) peer->channel->close();
  peer->attempt = attempt;
  peer->retry = kForever;
  try {
    peer->channel = fabric()->make_channel();
  } catch (const Error& error) {
    return miss_fabric(*peer, error.what());
  }
  Bytes told(sizeof attempt);
  write_value(told.data(), attempt);
  transport::append_bytes(told, peer->channel->address());
  peer->link->put_frame(transport::FrameKind::fabric, std::move(told));
}

/// Connects the channel to that of the other side, and asks for an answer over it.
void TlsTransport::take_fabric(const TlsPeerRef& peer, ByteSpan told) {
  if (options_.fabric.empty()) transport::refuse_frame("has an address of a fabric");
  const auto attempt = load<std::uint32_t>(transport::cut_bytes(told, sizeof(std::uint32_t)).data());
  if (attempt < peer->attempt) return;  // this side has begun a later one
  if (attempt > peer->attempt) {
    if (peer->is_reached) transport::refuse_frame("has another address of the fabric");
    begin_fabric(peer, attempt);
  }
  if (peer->retry != kForever) return;
  point("rpc.fabric.connecting");
  const std::weak_ptr<TlsPeer> kept = peer;
  try {
    peer->channel->connect(told, {peer->deliver,
                                  [this, kept] {
                                    if (const TlsPeerRef reached = kept.lock()) open_fabric(reached);
                                  },
                                  [this, kept] {
                                    const TlsPeerRef failed = kept.lock();
                                    if (failed && failed->is_reached) failed->link->close();
                                    else if (failed) miss_fabric(*failed, "the connection has failed");
                                  }});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::system) throw;
    return miss_fabric(*peer, error.what());
  }
  peer->channel->ask();
}

/// Records that the other side was not reached, perhaps because there is no route to its host now. The next attempt uses
/// a new fabric, which looks at the networks again.
void TlsTransport::miss_fabric(TlsPeer& peer, const char* why) noexcept {
  constexpr std::chrono::milliseconds kPause{100};
  log_debug(fmt::format("{} was not reached over {}: {}", peer.member->name(), name(), why));
  has_missed_fabric_ = true;
  peer.retry = Deadline::after(kPause);
  beats_->request();
  point("rpc.fabric.missed");
}

void TlsTransport::open_fabric(const TlsPeerRef& peer) {
  peer->ready = kForever;
  peer->is_reached = true;
  {
    const LockGuard lock(mutex_);
    channels_.push_back(peer->channel);
  }
  open_for(*peer->member, std::make_unique<HostConnection<FabricChannel>>(peer->channel));
}

void TlsTransport::wake_fabrics() {
  const LockGuard lock(mutex_);
  if (fabric_) fabric_->wake();
  for (const auto& old : old_fabrics_) old->wake();
}

/// Ends the fabrics that no channel uses. The loop's thread calls it, which runs their handlers.
void TlsTransport::drop_old_fabrics() noexcept {
  std::vector<std::shared_ptr<Fabric>> unused;
  const LockGuard lock(mutex_);
  std::erase_if(old_fabrics_, [&](auto& old) {
    if (old.use_count() != 1) return false;
    unused.push_back(std::move(old));
    return true;
  });
}

}  // namespace onecopy::rpc
