// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "support/exchange.h"
#include "support/queue_exchanges.h"

namespace onecopy::bench {

/// A process that returns each message, with all kinds of exchanges between it and this process. Thread safety: none.
class HandOver {
 public:
  HandOver();

  /// Returns the nanoseconds of an exchange between two processors.
  double round(const std::string& name, int count);

 private:
  Peer peer_;
  QueueLink queues_;
  Exchanges exchanges_;
};

}  // namespace onecopy::bench
