// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "support/peer.h"

namespace onecopy::bench {

/// Two processes that talk through iceoryx, and its daemon, which lives as long as this object.
/// Thread safety: none.
class Iceoryx {
 public:
  /// Without the program or the daemon, or when they do not start, why_absent() says so.
  Iceoryx();
  ~Iceoryx();
  Iceoryx(const Iceoryx&) = delete;
  Iceoryx& operator=(const Iceoryx&) = delete;

  bool present() const { return leader_ != nullptr; }
  const std::string& why_absent() const { return why_; }
  /// "spin", "sleep" (round trips) or "one way". Nanoseconds for each.
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
