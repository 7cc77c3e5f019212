// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "onecopy/core/bytes.h"

namespace onecopy::store {

/// Names one attempt to publish: random, so that an attempt which is repeated makes one version.
using Token = std::array<std::uint8_t, 16>;

/// A version as the keeper knows it: all but the tensors.
struct VersionRecord {
  std::uint64_t id = 0;      ///< in this keeper; never used again
  std::uint64_t number = 0;  ///< of the object: 1, 2, 3
  std::string name;          ///< of the object
  Token token{};
  std::uint64_t bytes = 0;     ///< of all chunks; of the tensors if they lie as they are
  std::string device;          ///< "cpu", "cuda:0" as the publisher named it
  std::int64_t made_at = 0;    ///< nanoseconds since 1970
  std::int32_t publisher = 0;  ///< pid
  std::uint32_t keep = 0;      ///< so many versions of the object stay, this one included
  /// The memory lies where its publisher made it, and is not sealed. Behind the chunks come descriptors of pipes: while one
  /// is open anywhere, a process keeps its memory for the version.
  bool is_as_is = false;

  void fields(auto& f) { f(id, number, name, token, bytes, device, made_at, publisher, keep, is_as_is); }
  bool operator==(const VersionRecord&) const = default;
};

/// A line of the index.
struct Record {
  enum class Kind : std::uint8_t {
    publish = 1,  ///< `version` exists and is the current one of its object
    show,         ///< the version with the id is the current one again
    drop,         ///< the version with the id is gone
    count,        ///< the object of `version` has had so many versions
  };
  Kind kind = Kind::publish;
  std::uint64_t id = 0;     ///< of the version
  VersionRecord version{};  ///< of publish and count

  void fields(auto& f) {
    f(kind, id);
    if (kind == Kind::publish || kind == Kind::count) f(version);
  }
  bool operator==(const Record&) const = default;
};

/// A name of an object: 1 to 1,024 bytes of UTF-8 without control characters. Throws invalid_argument for others.
void check_name(const std::string& name);

Bytes encode(const Record& record);
/// Throws protocol if these are not a record's bytes.
Record decode_record(ByteSpan bytes);

}  // namespace onecopy::store
