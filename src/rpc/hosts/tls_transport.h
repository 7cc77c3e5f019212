// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "os/event_loop.h"
#include "os/mutex.h"
#include "rpc/hosts/tls_hello.h"
#include "rpc/hosts/tls_options.h"
#include "rpc/member.h"
#include "rpc/transport.h"
#include "transport/fabric.h"
#include "transport/tls/tls_link.h"
#include "transport/tls/tls_listener.h"

namespace onecopy::rpc {

using transport::Fabric;
using transport::FabricChannel;
using transport::Inbox;
using transport::Side;
using transport::TlsContext;
using transport::TlsLink;
using transport::TlsLinkRef;
using transport::TlsListener;
using transport::TlsStream;

/// Reaches members on other hosts over TLS 1.3. With ONECOPY_RPC_FABRIC their messages go over a fabric: the TLS
/// connection exchanges the addresses of the fabric and reports the end of the other process. The thread of the transport's own
/// event loop puts their messages into lanes of this process, which are read like the lanes of processes of this host.
/// The process's own event loop is not used, because it must not wait for locks that are held across a fork, nor
/// encrypt while borrowers wait.
///
/// Thread safety: as Transport. Invariants: messages of a link are delivered only after its hello. The loop never waits
/// for a single peer.
class TlsTransport final : public Transport {
 public:
  /// Makes the transport that TlsOptions::of_environment() describes. Throws invalid_argument for a listener beyond
  /// loopback without a key, system if the address is taken, and unsupported without OpenSSL.
  explicit TlsTransport(TransportHost& host, const std::string& transport = {});
  ~TlsTransport() override { stop(); }

  std::string_view name() const noexcept override {
    return options_.fabric.empty() ? "tls" : std::string_view(options_.fabric);
  }
  bool shares_memory() const noexcept override { return false; }
  bool reconnects() const noexcept override { return true; }
  bool reaches(const Address& address) const override {
    return address.host != this_host() || (options_.is_forced && !address.endpoint.empty());
  }
  void complete(Address& own) override { own.endpoint = endpoint_; }
  void watch(Member& member) override;
  void open(Member& member, Deadline deadline) override;
  void close(Member& member) noexcept override;
  std::chrono::seconds silence_of(Member& member) const override;
  void flush() noexcept override;
  void stop() noexcept override;

 private:
  struct State : TransportState {
    bool is_connecting = false;     ///< one thread connects; others wait until the member is opened
    std::vector<TlsLinkRef> links;  ///< the links that the member and this process have opened
  };
  /// A link, and the functions that receive its messages, which are empty before its hello.
  struct TlsPeer {
    TlsLinkRef link;
    Member* member = nullptr;
    std::function<void(Message&&)> deliver;
    std::function<void()> ended;
    Deadline ready = kForever;  ///< when it must have said hello, and been reached over the fabric

    // Over a fabric. Only the loop's thread uses the fields once it has the link.
    std::shared_ptr<FabricChannel> channel;  ///< messages go over the channel instead of the link
    std::uint32_t attempt = 0;               ///< the number of the channel, the same on both sides
    Deadline retry = kForever;               ///< when the next attempt begins
    std::atomic<bool> is_reached{false};     ///< the other side has answered over the channel
  };
  using TlsPeerRef = std::shared_ptr<TlsPeer>;

  static State& state_of(Member& member) { return static_cast<State&>(*member.state); }

  void listen();
  std::shared_ptr<const TlsContext> context();
  TlsLinkRef connect(const Member& to, Deadline deadline);
  TlsLinkRef reach(const Member& to, Deadline deadline);
  std::unique_ptr<TlsStream> prove_to(const HostPort& at, Deadline deadline);
  TlsLinkRef make_link(std::unique_ptr<TlsStream> stream, Side side) const;
  std::chrono::milliseconds patience() const noexcept;
  void take_link(Member& member, const TlsPeerRef& peer);
  void open_for(Member& member, std::unique_ptr<Connection> outbound);
  Member& session_of(const Hello& hello);
  void end_session(const Member& member) noexcept;
  void add(const TlsPeerRef& peer);
  void poll(const TlsPeerRef& peer) noexcept;
  void deliver(const TlsPeerRef& peer, Inbox::Arrived&& arrived);
  void end(const TlsPeerRef& peer, const char* why) noexcept;
  std::vector<TlsPeerRef> peers() const;
  Timer::Pause beat();
  void abandon() noexcept;

  // fabric.cpp
  std::shared_ptr<Fabric> fabric();
  void begin_fabric(const TlsPeerRef& peer, std::uint32_t attempt);
  void take_fabric(const TlsPeerRef& peer, ByteSpan told);
  void miss_fabric(TlsPeer& peer, const char* why) noexcept;
  void open_fabric(const TlsPeerRef& peer);
  void wake_fabrics();
  void drop_old_fabrics() noexcept;

  TransportHost& host_;
  const TlsOptions options_;
  const int pid_;
  std::string endpoint_;
  std::atomic<bool> is_over_{false};
  std::atomic<bool> has_missed_fabric_{false};  ///< a member was not reached over the fabric
  mutable Mutex mutex_;
  std::shared_ptr<const TlsContext> context_ GUARDED_BY(mutex_);
  std::shared_ptr<Fabric> fabric_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Fabric>> old_fabrics_ GUARDED_BY(mutex_);  ///< the fabrics of older channels
  std::vector<TlsPeerRef> peers_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<FabricChannel>> channels_ GUARDED_BY(mutex_);  ///< the open ones
  std::unique_ptr<EventLoop> loop_ =
      std::make_unique<EventLoop>("onecopy-tls");  ///< started by the listener or the first link
  std::optional<TlsListener> listener_;            ///< used by the loop's thread only
  std::optional<Timer> beats_;
};

}  // namespace onecopy::rpc
