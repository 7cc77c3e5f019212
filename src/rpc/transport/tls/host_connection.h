// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "rpc/transport.h"

namespace onecopy::rpc {

/// A connection that sends messages over a TlsLink or a UcxChannel. The other process's own thread wakes the member. A
/// thread that waits for another host sleeps at once: if it spun, the event loop's thread, which receives, would wait for a
/// processor on a machine with much to do, and then receive what the thread spins for.
template <class Way>
class HostConnection final : public Connection {
 public:
  explicit HostConnection(std::shared_ptr<Way> way) : way_(std::move(way)) {}
  void send(const Message& message, Stream stream, Deadline deadline) override {
    way_->put(message, stream, deadline);
  }
  bool worker_shares_cpu() const noexcept override { return true; }
  bool waiter_shares_cpu() const noexcept override { return true; }
  bool takes_cards() const noexcept override {
    if constexpr (requires { way_->takes_cards(); }) return way_->takes_cards();
    return false;
  }

 private:
  const std::shared_ptr<Way> way_;  // the transport's peer also owns it
};

}  // namespace onecopy::rpc
