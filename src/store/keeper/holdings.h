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

/// The limits that a keeper was started with. Versions beyond a limit are refused, once all old ones that nobody reads are
/// gone.
struct Limits {
  std::uint64_t bytes = UINT64_MAX;                ///< of all versions together
  std::uint64_t client_bytes = UINT64_MAX;         ///< of the versions of one publisher
  std::map<std::string, std::uint64_t> devices{};  ///< bytes of the versions on a device, such as "cuda:0"
  /// The age at which versions go that are not current and that nobody reads.
  std::optional<std::chrono::seconds> age{};
};

/// The processes of a keeper that the keeper of this process replaces. Thread safety: none.
struct Predecessor {
  static constexpr std::chrono::seconds kPatience{5};

  UnixSocket socket;          ///< to its worker
  std::vector<Fd> processes;  ///< none if no keeper ran

  /// Tells the predecessor to end. Returns false if the predecessor goes on, and then the caller must end.
  bool await_end();
};

/// The things that both halves of the keeper have. A half that is forked gets the holdings of the other half. Thread safety: none.
struct Holdings {
  Fd lock;  ///< on the directory: there is one keeper for each
  UnixSocket listener;
  Fd signals;  ///< readable when this process has been asked to end (SIGINT, SIGTERM, SIGHUP)
  Digest secret{};
  Token keeper{};  ///< random: the ids of versions belong to this keeper
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
  leave,  ///< it ends, and the keeper goes on in other processes
};

}  // namespace onecopy::store
