// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace onecopy {

/// A queue as the share layer sees it. Both functions are called on the watch thread and must not
/// throw.
struct ChannelHooks {
  /// How far the queue has come: items ever put, items ever taken. Empty if it is closed.
  std::function<std::optional<std::pair<std::uint64_t, std::uint64_t>>()> progress;
  /// In the queue's creator: how many other processes have it open in this role, at each change.
  std::function<void(std::uint8_t role, std::size_t users)> users;
};

}  // namespace onecopy
