// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "rpc/far/far.h"
#include "rpc/member.h"
#include "rpc/transport.h"

namespace onecopy::rpc {

/// Reaches members on other hosts over TCP. The far thread puts their messages into lanes of this process, so a thread reads
/// them as it reads those of others.
/// Thread safety: as Transport.
class FarTransport final : public Transport {
 public:
  /// Throws as Far does.
  FarTransport(TransportHost& host, EventLoop& loop);

  bool shares_memory() const noexcept override { return false; }
  bool reaches(const Address& address) const override {
    return address.host != this_host() || (far_.is_forced() && !address.endpoint.empty());
  }
  void complete(Address& own) override { own.endpoint = far_.endpoint(); }
  void watch(Member& member) override { member.state = std::make_unique<State>(); }
  void open(Member& member, Deadline deadline) override;
  void close(Member& member) noexcept override;
  std::chrono::seconds silence_of(Member& member) const override;
  void flush() noexcept override { far_.flush(); }
  void stop() noexcept override { far_.stop(); }

 private:
  struct State : TransportState {
    bool is_connecting = false;     ///< by one thread; others wait for the member to be opened
    std::vector<FarLinkRef> links;  ///< the one that the member opened, and the one that this process did
  };

  static State& state_of(Member& member) { return static_cast<State&>(*member.state); }
  Far::Delivery take_link(Member& member, const FarLinkRef& link);

  TransportHost& host_;
  Far far_;
};

}  // namespace onecopy::rpc
