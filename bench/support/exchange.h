// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "support/peer.h"
#include "support/samples.h"

namespace onecopy::bench {

/// A way in which two processes communicate: one leads, the other follows. A count is the number of round trips, or of
/// items in one direction.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void lead(int count) = 0;
  virtual void follow(int count) = 0;
};

/// The exchanges by name, which are the same in both processes.
using Exchanges = std::map<std::string, std::unique_ptr<Exchange>>;

/// The raw limits and the peers that need nothing but the system: "spin", "futex", "pipe", "unix" (a
/// descriptor per tensor), "unix spin"; and one way "ring to", "pipe to", "unix to".
Exchanges raw_exchanges(const RawLink& link);

/// Leads `count` exchanges with a peer in serve_exchanges(), after a few that warm up. Returns the nanoseconds of each.
double lead_round(Exchange& exchange, const std::string& name, Peer& peer, int count);
/// Follows the exchanges that `message` of lead_round() requests. Returns false for another message.
bool follow_round(const Exchanges& exchanges, Parent& parent, const std::string& message);

}  // namespace onecopy::bench
