// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "store/keeper/keeper_directories.h"

namespace onecopy::store {

/// The times at which a worker looks after its directories: at its start, since its predecessor may have ended while it made a
/// directory again, then each minute, and when a process rings that does not find the keeper. Thread safety: none.
class DirectoryWatch {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::minutes kInterval{1};

  explicit DirectoryWatch(Clock::time_point now) noexcept : next_(now) {}

  Clock::time_point next() const noexcept { return next_; }
  void ring() noexcept { is_rung_ = true; }
  /// Returns whether no directory could be made at the last poll(), so that no process finds the keeper.
  bool is_lost() const noexcept { return is_lost_; }
  /// Polls the directories if it is time to. Returns `whole` if it is not.
  KeeperDirectories::State poll(Clock::time_point now, KeeperDirectories& directories,
                                std::optional<UnixSocket>& listener, const Digest& secret) {
    if (now < next_ && !is_rung_) return KeeperDirectories::State::whole;
    next_ = now + kInterval;
    const auto state = directories.poll(listener, secret);
    if (is_rung_) directories.answer_bell();
    is_rung_ = false;
    is_lost_ = state == KeeperDirectories::State::lost;
    return state;
  }

 private:
  Clock::time_point next_;
  bool is_rung_ = false;
  bool is_lost_ = false;
};

}  // namespace onecopy::store
