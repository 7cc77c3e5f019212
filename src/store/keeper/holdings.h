// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "os/fd.h"
#include "os/hmac.h"
#include "os/unix_socket.h"
#include "store/format/record.h"
#include "store/keeper/log.h"

namespace onecopy::store {

/// The limits that a keeper was started with. A version that would exceed a limit is refused if dropping all old
/// versions without a reader does not make room.
struct Limits {
  std::uint64_t bytes = UINT64_MAX;         ///< the max size of all versions together
  std::uint64_t client_bytes = UINT64_MAX;  ///< the max size of one publisher's versions
  /// The max size of the versions on a device, such as "cuda:0".
  std::map<std::string, std::uint64_t> devices{};
  /// The age from which versions are dropped that are not current and have no reader.
  std::optional<std::chrono::seconds> age{};
};

/// The processes of a keeper that the keeper of this process replaces. Thread safety: none.
struct Predecessor {
  static constexpr std::chrono::seconds kPatience{5};

  UnixSocket socket;          ///< connected to the worker of the predecessor
  std::vector<Fd> processes;  ///< empty if no keeper ran

  /// Tells the predecessor to end and waits. Returns false if the predecessor continues, in which case the caller must
  /// end.
  bool await_end();
};

/// The objects that both halves of the keeper hold. A forked half inherits the holdings of the other half. Thread
/// safety: none.
struct Holdings {
  Fd lock;  ///< the lock of the directory, which has one keeper
  UnixSocket listener;
  Fd signals;  ///< readable when a signal asks this process to end (SIGINT, SIGTERM, SIGHUP)
  Digest secret{};
  Token keeper{};  ///< a random name of the keeper, whose ids of versions are valid with it only
  Limits limits;
  Predecessor predecessor;
  Log index;
  /// The descriptors of each version by its id: the table, then the chunks.
  std::map<std::uint64_t, std::vector<Fd>> versions;
};

/// The next role of a process of the keeper.
enum class Next : std::uint8_t {
  be_worker,
  be_guard,
  end,
  leave,  ///< end this process; the keeper continues in others
};

}  // namespace onecopy::store
