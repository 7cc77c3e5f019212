// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "onecopy/core/bytes.h"

namespace onecopy::store {

/// A random name of one attempt to publish, by which a repeated attempt makes only one version.
using Token = std::array<std::uint8_t, 16>;

/// The ways in which the memory of a version is made.
enum class VersionKind : std::uint8_t {
  copied,  ///< the chunks are sealed, so no process can write them
  /// The memory is where its publisher made it, and is not sealed. The chunks are followed by descriptors of pipes: while a
  /// pipe is open in any process, its maker keeps memory for the version.
  as_is,
  kv_pool,  ///< blocks that processes write, followed by the memory of their leases and keys
  draft,    ///< a part of a transaction that processes still write, so that its chunks are not sealed
};

/// A bit in the number of a part of a transaction: the version gets this number, or the commit is refused. Without the bit it
/// gets a larger one if the number is taken.
inline constexpr std::uint64_t kExactNumber = std::uint64_t{1} << 63;

/// A version as the keeper knows it, without the tensors.
struct VersionRecord {
  std::uint64_t id = 0;      ///< the version's number in this keeper; never reused
  std::uint64_t number = 0;  ///< the version's number in the object: 1, 2, 3
  std::string name;          ///< the name of the object
  Token token{};
  /// The size of all chunks; for tensors published as they are, of the tensors.
  std::uint64_t bytes = 0;
  std::string device;          ///< "cpu", "cuda:0" as the publisher named it
  std::int64_t made_at = 0;    ///< nanoseconds since 1970
  std::int32_t publisher = 0;  ///< pid
  std::uint32_t keep = 0;      ///< the number of versions of the object that stay, this one included
  VersionKind kind = VersionKind::copied;

  /// Returns whether its readers need the descriptors to go on.
  bool needs_files() const noexcept { return kind != VersionKind::copied; }

  void fields(auto& f) { f(id, number, name, token, bytes, device, made_at, publisher, keep, kind); }
  bool operator==(const VersionRecord&) const = default;
};

/// A version that was published once and dropped.
struct DroppedVersion {
  /// A bit of `number`: no process gave the version back in time. It may come back until its object is published again or
  /// removed.
  static constexpr std::uint64_t kGivenUp = std::uint64_t{1} << 63;

  std::uint64_t number = 0;
  Token token{};
  bool is_given_up() const noexcept { return (number & kGivenUp) != 0; }
  void fields(auto& f) { f(number, token); }
  bool operator==(const DroppedVersion&) const = default;
};

/// A line of the index.
struct Record {
  enum class Kind : std::uint8_t {
    publish = 1,  ///< `version` exists and is the current one of its object
    show,         ///< the version with the id is the current one again
    drop,  ///< the version or member with the id is gone; an unknown id only sets the lowest id of later ones
    object,  ///< the object of `version` has had so many versions, and keeps so many; `dropped` are the last dropped ones
    floor,   ///< objects that no record names have had as many versions as `version.number`
    join,    ///< a process takes part in the transaction, as the member `version`
    part,    ///< `version` is a part of the transaction, in place of the part with the same token
    commit,  ///< all parts of the transaction are current versions, with the number and the time of `version`
    abort,  ///< the transaction has ended, and its parts are gone
  };
  Kind kind = Kind::publish;
  std::uint64_t id = 0;                   ///< the id of the version
  VersionRecord version{};                ///< used by all but show, drop and abort
  std::vector<DroppedVersion> dropped{};  ///< used by object
  Token transaction{};                    ///< used by join, part, commit and abort

  void fields(auto& f) {
    f(kind, id);
    if (kind != Kind::show && kind != Kind::drop && kind != Kind::abort) f(version);
    if (kind == Kind::object) f(dropped);
    if (kind >= Kind::join) f(transaction);
  }
  bool operator==(const Record&) const = default;
};

/// Checks the name of an object: 1 to 1,024 bytes of UTF-8 without control characters. Throws invalid_argument.
void check_name(const std::string& name);

Bytes encode(const Record& record);
/// Decodes a record. Throws protocol if the bytes are not a record.
Record decode_record(ByteSpan bytes);

}  // namespace onecopy::store
