// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "os/fd.h"
#include "os/hmac.h"
#include "os/unix_socket.h"
#include "store/format/record.h"
#include "store/keeper/keeper_directories.h"
#include "store/keeper/log.h"
#include "store/keeper/reservations.h"

namespace onecopy::store {

/// The processes of a keeper that the keeper of this process replaces. Thread safety: none.
struct Predecessor {
  static constexpr std::chrono::seconds kPatience{5};

  UnixSocket socket;          ///< connected to the worker of the predecessor
  std::vector<Fd> processes;  ///< empty if no keeper ran

  /// Tells the predecessor to end and waits. Returns false if the predecessor continues, in which case the caller must
  /// end.
  bool await_end();
};

/// The objects that both halves of the keeper hold. A forked half inherits the state of the other half. Thread
/// safety: none.
struct KeeperState {
  KeeperDirectories directories;
  UnixSocket listener;
  Fd signals;  ///< readable when a signal asks this process to end (SIGINT, SIGTERM, SIGHUP)
  Digest secret{};
  Token keeper{};  ///< a random name of the keeper, whose ids of versions are valid with it only
  std::chrono::steady_clock::time_point begin =
      std::chrono::steady_clock::now();  ///< the start of that keeper
  Limits limits;
  Predecessor predecessor;
  std::string index_path;
  Log index;
  std::string trouble;  ///< what the keeper logs once it has its log; empty if the index was read
  bool knows_all =
      true;  ///< false: the index was lost, and clients may give back versions that it does not name
  /// The descriptors of each version by its id: the table, then the chunks. The keeper opened the table itself, so that
  /// no lock of another process belongs to this open file.
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
