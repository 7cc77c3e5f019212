// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "rpc/transport.h"

namespace onecopy::rpc {

/// Returns the message as it goes to another host: with the time that is left in place of a call's deadline, because hosts
/// have different clocks. A note arrives after all that was sent before it.
Message leaving(const Message& message);
/// Changes the time left of a call that has arrived back to a deadline.
void arrive(Message& message);

/// A connection that sends messages over a TlsLink or a FabricChannel. The other process's own thread wakes the member. A
/// thread that waits for another host sleeps at once: if it spun, the event loop's thread, which receives, would wait for a
/// processor on a machine with much to do, and then receive what the thread spins for.
template <class Way>
class HostConnection final : public Connection {
 public:
  explicit HostConnection(std::shared_ptr<Way> way) : way_(std::move(way)) {}
  void send(const Message& message, Stream stream, Deadline deadline) override {
    way_->put(leaving(message), stream, deadline);
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
