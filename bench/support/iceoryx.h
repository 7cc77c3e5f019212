// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "support/peer.h"

namespace onecopy::bench {

/// Owns two processes that communicate through iceoryx, and the daemon of iceoryx.
/// Thread safety: none.
class Iceoryx {
 public:
  /// Starts the program and the daemon. If they are missing or do not start, why_absent() returns the reason.
  Iceoryx();
  ~Iceoryx();
  Iceoryx(const Iceoryx&) = delete;
  Iceoryx& operator=(const Iceoryx&) = delete;

  bool present() const { return leader_ != nullptr; }
  const std::string& why_absent() const { return why_; }
  /// Measures "spin", "sleep" (round trips) or "one way". Returns the nanoseconds of each exchange.
  double round(const std::string& kind, int count);

  static constexpr const char* kName = "iceoryx 2.0.3";

 private:
  void start_daemon();
  void stop_daemon() noexcept;

  int daemon_ = -1;
  std::unique_ptr<Peer> leader_;
  std::unique_ptr<Peer> follower_;
  std::string why_;
};

}  // namespace onecopy::bench
