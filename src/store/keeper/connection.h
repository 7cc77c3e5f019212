// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "os/unix_socket.h"
#include "store/format/message.h"

namespace onecopy::store {

/// A client of the worker. Thread safety: none.
struct Connection {
  enum class Stage : std::uint8_t { stranger, challenged, client };

  explicit Connection(UnixSocket connected) : socket(std::move(connected)), pid(socket.peer().pid) {}

  UnixSocket socket;
  PacketJoiner joiner;
  const int pid;
  Stage stage = Stage::stranger;
  Nonce theirs{}, ours{};
  std::map<std::uint64_t, unsigned> reads;  ///< how often the client reads each version, by id
  std::optional<WaitForChange> watch;       ///< the question whose answer is pending
};

}  // namespace onecopy::store
