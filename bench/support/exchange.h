// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "support/peer.h"
#include "support/samples.h"

namespace onecopy::bench {

/// One way to talk, as two processes: one leads, the other follows. A count is of round trips, or of
/// items one way.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void lead(int count) = 0;
  virtual void follow(int count) = 0;
};

/// By name, the same in both processes.
using Exchanges = std::map<std::string, std::unique_ptr<Exchange>>;

/// The raw limits and the peers that need nothing but the system: "spin", "futex", "pipe", "unix" (a
/// descriptor per tensor), "unix spin"; and one way "ring to", "pipe to", "unix to".
Exchanges raw_exchanges(const RawLink& link);

/// Leads `count` exchanges with a peer that is in serve_exchanges(). Nanoseconds for each; a few warm
/// ones come first and are not counted.
double lead_round(Exchange& exchange, const std::string& name, Peer& peer, int count);
/// Follows what `message` asks for, as lead_round() sends it. False when it is something else.
bool follow_round(const Exchanges& exchanges, Parent& parent, const std::string& message);

}  // namespace onecopy::bench
