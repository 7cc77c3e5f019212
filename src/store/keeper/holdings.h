// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "os/fd.h"
#include "os/hmac.h"
#include "os/unix_socket.h"
#include "store/format/record.h"
#include "store/keeper/log.h"

namespace onecopy::store {

/// The limits that a keeper was started with.
struct Limits {
  std::uint64_t bytes = UINT64_MAX;  ///< of all versions together
};

/// The things that both halves of the keeper have. A half that is forked gets it from the other. Thread safety: none.
struct Holdings {
  Fd lock;  ///< on the directory: there is one keeper for each
  UnixSocket listener;
  Fd signals;  ///< readable when this process has been asked to end (SIGINT, SIGTERM, SIGHUP)
  Digest secret{};
  Token keeper{};  ///< random: the ids of versions belong to this keeper
  Limits limits;
  Log index;
  /// The descriptors of each version by its id: the table, then the chunks.
  std::map<std::uint64_t, std::vector<Fd>> versions;
};

/// The next role of a process of the keeper.
enum class Next : std::uint8_t { be_worker, be_guard, end };

}  // namespace onecopy::store
