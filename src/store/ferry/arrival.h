// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "os/mapping.h"
#include "store/client/client.h"
#include "store/client/membership.h"
#include "store/ferry/messages.h"
#include "store/format/table.h"

namespace onecopy::store::ferry {

/// The place of the version that arrives: memory that both halves of the keeper hold, and a byte for each chunk that is whole.
struct ArrivingFiles {
  VersionRecord version;
  Table table;
  Fd memory;   ///< empty for a version without tensors
  Fd arrived;  ///< a byte for each chunk

  /// Returns the files of a version that is arriving; nothing if the keeper has none of that token.
  static std::optional<ArrivingFiles> find(Client& client, const Token& local);
  /// Returns whether all chunks are whole.
  bool is_whole() const;
};

/// A version that arrives from another host.
///
/// Guarantees. No process sees a part of the version: it becomes current in one step, once all chunks are whole and the kernel
/// has sealed the memory, which it does only if no process has it mapped for writing. Chunks that are whole stay when this
/// process is killed, for kAway; they are lost when both halves of the keeper are killed at once.
///
/// Mechanism. The memory is the draft of a transaction of its own, which has the token of the draft, so that another process
/// finds both. The keeper's halves hold the draft and the bytes that say which chunks are whole; a byte is set once the
/// checksum of the chunk in memory was right.
///
/// Thread safety: none.
class Arrival {
 public:
  static constexpr std::chrono::minutes kAway{10};

  struct Wanted {
    std::string name;
    std::uint64_t number =
        0;  ///< the version gets this number, or a larger one if it is taken, see kExactNumber
    std::uint32_t keep = 1;
    Table table;
  };

  /// Goes on with a version. Returns nothing if the keeper has none of that token, or has all of it, which is current then.
  static std::optional<Arrival> resume(const std::shared_ptr<Client>& client, const Token& local);
  /// Begins a version. Calls `has_room` once there is memory for all of it, before another process can find the version. Throws
  /// out_of_memory with the numbers if the version is beyond the limits of the keeper or of this process.
  static Arrival begin(const std::shared_ptr<Client>& client, const Token& local, Wanted wanted,
                       const std::function<void()>& has_room);

  /// Begins with a version that this process has made, in `memory` that is sealed: all of it is whole.
  static Arrival of_whole(const std::shared_ptr<Client>& client, const Token& local, Wanted wanted,
                          Fd memory);

  std::uint64_t chunks() const noexcept { return chunks_of(bytes_); }
  /// Returns the number of bytes that come from another host.
  std::uint64_t bytes() const noexcept { return bytes_; }
  bool has(std::uint64_t chunk) const noexcept { return arrived_.data()[chunk] != std::byte{0}; }
  /// Returns the memory of a chunk.
  std::span<std::byte> room(std::uint64_t chunk) const noexcept;
  /// Takes the chunk in room() as whole. REQUIRES: the memory there has the right checksum.
  void take(std::uint64_t chunk) noexcept;
  bool is_whole() const { return files_.is_whole(); }
  /// Lets the kernel prove that no process can write to the memory. REQUIRES: all chunks are whole.
  void seal();
  /// Makes the version current, and returns its number. REQUIRES: all chunks are whole.
  std::uint64_t commit();
  /// Drops what has arrived.
  void abort() { membership_->conclude(Conclude::How::abort); }

 private:
  Arrival(std::shared_ptr<Client> client, std::shared_ptr<Membership> membership, ArrivingFiles files);

  std::shared_ptr<Client> client_;  // shared with the puller
  std::shared_ptr<Membership> membership_;
  ArrivingFiles files_;
  std::uint64_t bytes_;
  Mapping memory_, arrived_;
};

}  // namespace onecopy::store::ferry
