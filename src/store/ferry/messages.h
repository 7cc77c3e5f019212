// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "core/fields.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "store/format/record.h"
#include "store/format/table.h"
#include "transport/tls/tls_context.h"

/// The messages between two hosts about a version, described in docs/design/formats/store-pull-v1.md. The host that pulls asks,
/// and the other one answers in the order of the questions.
namespace onecopy::store::ferry {

inline constexpr std::uint32_t kProtocol = 1;
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{16} << 20;
inline constexpr std::size_t kMaxQuestion = 64 << 10;
inline constexpr std::uint64_t kMaxAnswer = std::uint64_t{1} << 31;  ///< as the table of a version

inline constexpr transport::TlsProtocol kStoreProtocol{
    "onecopy store 1", "the host there has another key: give both one file in ONECOPY_STORE_KEY_FILE"};

/// Returns the bytes of a version that travel: its memory up to the end of the last tensor. The memory itself is rounded up to
/// whole pages, whose size differs between hosts.
inline std::uint64_t bytes_to_send(const Table& table) noexcept {
  std::uint64_t bytes = 0;
  for (const Row& row : table.rows) bytes = std::max(bytes, row.offset + row.layout.nbytes());
  return bytes;
}
inline std::uint64_t chunks_of(std::uint64_t bytes) noexcept {
  return bytes / kChunkBytes + (bytes % kChunkBytes != 0 ? 1 : 0);
}
inline std::uint64_t bytes_of_chunk(std::uint64_t chunk, std::uint64_t bytes) noexcept {
  return std::min(kChunkBytes, bytes - chunk * kChunkBytes);
}

enum class Question : std::uint32_t { poll = 1, take = 2, carry = 3 };

/// Asks which version the other host has. The answer comes once that version is not `known`, or after `wait_ms`.
struct Poll {
  std::uint32_t protocol = kProtocol;
  Question kind = Question::poll;
  std::string name;
  std::uint64_t number = 0;  ///< 0 for the newest one
  Token known{};
  std::uint32_t wait_ms = 0;
  void fields(auto& f) { f(protocol, kind, name, number, known, wait_ms); }
};
/// Asks for a chunk of the version that the last answer to Poll told of.
struct Take {
  std::uint32_t protocol = kProtocol;
  Question kind = Question::take;
  std::uint64_t chunk = 0;
  void fields(auto& f) { f(protocol, kind, chunk); }
};
/// Asks that the bytes of chunks go over UCX, unencrypted.
struct Carry {
  std::uint32_t protocol = kProtocol;
  Question kind = Question::carry;
  Bytes address;  ///< of the asking host's end
  void fields(auto& f) { f(protocol, kind, address); }
};

/// The answer to Poll.
struct Told {
  std::uint8_t refusal = 0;  ///< 1 + the code of an error, whose text is in `text`; 0: none
  std::string text;
  bool is_known = false;  ///< the version is still `known`, and nothing follows
  Token version{};        ///< the same on all hosts that have the version
  std::uint64_t number = 0;
  std::uint64_t newest = 0;  ///< the largest number that a version of the object has on that host
  std::uint32_t keep = 0;
  Bytes table;
  void fields(auto& f) { f(refusal, text, is_known, version, number, newest, keep, table); }

  static Told refused(ErrorCode code, const std::string& text) {
    Told told;
    told.refusal = static_cast<std::uint8_t>(static_cast<std::uint8_t>(code) + 1);
    told.text = text;
    return told;
  }
  /// Returns the code of the error; nothing if there is none.
  std::optional<ErrorCode> error() const noexcept {
    if (refusal == 0) return {};
    const auto code = static_cast<ErrorCode>(refusal - 1);
    return code > kLastErrorCode ? ErrorCode::protocol : code;
  }
};
/// The answer to Carry.
struct Carried {
  std::string refusal;  ///< why the bytes go over TLS alone; empty: they go over UCX
  Bytes address;        ///< of this host's end
  void fields(auto& f) { f(refusal, address); }
};
/// The answer to Take, which the bytes of the chunk and their checksum follow.
struct Chunk {
  std::uint64_t chunk = 0;
  std::uint32_t bytes = 0;  ///< 0: that host has not got the chunk, or no longer, and nothing follows
  void fields(auto& f) { f(chunk, bytes); }
};
/// The message that follows the bytes of a chunk.
struct Checksum {
  std::uint32_t crc = 0;  ///< CRC-32C
  void fields(auto& f) { f(crc); }
};

}  // namespace onecopy::store::ferry
