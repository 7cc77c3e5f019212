// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "support/exchange.h"

namespace onecopy::bench {

/// Exchanges of tensors through a Queue:
///   "queue", "queue fresh"              round trips as they come: adaptive spinning
///   "queue sleep", "queue sleep fresh"  both sides sleep
///   "queue 4 bytes", "queue 1 GiB"      round trips of tensors of that size
///   "queue to", "queue to fresh"        one way
/// Tensors have 4 KiB unless a size is given. An exchange sends the same tensor each time, or a new one ("fresh").
/// Thread safety: none.
class QueueLink {
 public:
  /// Makes the queues, on the leading side. REQUIRES: no thread is pinned yet, since a queue counts the processors.
  QueueLink();
  /// Opens the other side by the leader's names().
  explicit QueueLink(const std::string& names);
  ~QueueLink();

  std::string names() const;
  void add_to(Exchanges& exchanges);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onecopy::bench
