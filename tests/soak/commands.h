// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"

namespace onecopy::soak {

/// A director's commands to an agent.
enum class Op : std::uint8_t {
  allocate,      ///< a new block under `ref`, filled for `block` and version 0
  share,         ///< answers the handle's bytes
  keep,          ///< keeps the Handle object of the tensor `ref` under `other`
  open,          ///< opens `bytes` under `ref`, and reads it
  check,         ///< reads `ref`
  write,         ///< fills `ref` for `block` and `version`
  drop,          ///< lets go of `ref`
  create_queue,  ///< answers the handle's bytes
  connect,       ///< connects to `queue` by `bytes`, answers this agent's own handle
  put,  ///< one item of the tensors `refs`, with `size` bytes of data; with `tag` 0 one tensor, `size` times
  get,            ///< one item; its tensors get the numbers from `ref` on
  leave,          ///< destroys the Queue object
  fork,           ///< the child talks over the packet's descriptor
  exec,           ///< answers, then becomes a fresh program
  exit,           ///< answers, then drops everything and ends with exit(0)
  exit_at_once,   ///< answers, then _exit(0)
  linger,         ///< answers, closes its descriptors as a dying process does, and ends `wait_ms` later
  check_by_card,  ///< pins `ref`, and reads it through a card; itself where a card cannot be used
  unpin,          ///< `ref`
  trim,           ///< gives memory back, and unpins where no tensor lies
  publish,        ///< a new version of the object `other`, filled for `block`; answers its number
  open_version,   ///< opens the current version of the object `other` under `ref`, and reads it
  settle,         ///< waits until nothing is held, of `size` others, and answers `Result::numbers`
};
const char* name(Op op) noexcept;

struct Command {
  Op op{};
  bool named = false;  ///< allocate: by the strategy file_system
  std::uint32_t tag = 0;
  std::uint32_t wait_ms = 0;
  std::uint64_t ref = 0;
  std::uint64_t other = 0;
  std::uint64_t block = 0;
  std::uint64_t version = 0;
  std::uint64_t size = 0;
  std::uint64_t queue = 0;
  std::vector<std::uint64_t> refs;
  Bytes bytes;

  std::string str() const;
};

/// The content of a block when it was read.
struct Seen {
  std::uint64_t block = 0;
  std::uint64_t version = 0;
  bool whole = false;  ///< all of it is of that block and version
};

/// The resources of an agent once it has settled.
enum class Left : std::uint8_t {
  owners,
  leases,
  limbo,
  deposits,
  in_transit,
  live_blocks,
  borrowers,
  descriptors,
  mappings,
  threads,
};
/// A borrower may have two claim pages of an owner: its own, and one of a process that forked it.
inline constexpr std::size_t kWaysToKnow = 2;
const char* name(Left left) noexcept;

struct Result {
  enum class Kind : std::uint8_t { done, nothing, refused };
  Kind kind = Kind::done;
  ErrorCode code{};  ///< when it was refused
  std::uint32_t tag = 0;
  std::uint64_t data_bytes = 0;  ///< of the message, or how many times the one tensor
  std::uint64_t unkept = 0;      ///< put: Stats::unkept afterwards
  std::uint64_t micros = 0;      ///< how long it took
  std::string text;              ///< why it was refused
  Bytes bytes;
  std::vector<Seen> seen;
  std::vector<std::uint64_t> numbers;  ///< in the order of Left

  std::string str() const;
};

/// The first message of a process.
struct Hello {
  std::int32_t pid = 0;
};

/// A child of the answering agent that ended by a signal.
struct Crash {
  std::int32_t pid = 0;
  std::int32_t signal = 0;
};

struct Answer {
  std::vector<Result> results;
  std::vector<Crash> crashes;
};

Bytes encode(const std::vector<Command>& batch);
std::vector<Command> decode_batch(ByteSpan bytes);
Bytes encode(const Answer& answer);
Answer decode_answer(ByteSpan bytes);

}  // namespace onecopy::soak
