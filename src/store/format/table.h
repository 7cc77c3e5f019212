// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "onecopy/core/bytes.h"
#include "onecopy/core/layout.h"

namespace onecopy::store {

/// The tensors of a slot begin at multiples of so many bytes.
inline constexpr std::size_t kAlignment = 512;

/// A tensor of a version, row-major.
struct Row {
  std::string name;
  Layout layout;
  std::uint64_t offset = 0;  ///< bytes from the beginning of the version's memory

  bool operator==(const Row&) const = default;
};

/// A part of a version's memory that was exported as one, see ExportedMemory. A slot is one part.
struct Part {
  std::uint64_t bytes = 0;
  std::uint32_t files = 0;  ///< descriptors
  std::uint8_t kind = 0;
  Bytes blob;

  void fields(auto& f) { f(bytes, files, kind, blob); }
  bool operator==(const Part&) const = default;
};

/// The table of a version: all but the elements. Each table has a memfd of its own, sealed against every change.
struct Table {
  std::vector<Row> rows;  ///< names are unique
  bool has_known_layout =
      false;               ///< decode_table() found the layout that its caller knows, and left out the rows
  std::uint64_t size = 0;  ///< of the version's memory, of which rows use a part
  std::map<std::string, std::string> key;
  std::map<std::string, std::string> attributes;
  std::vector<std::uint32_t> checksums;  ///< one a row, or none
  std::uint8_t device_type = 0;
  std::array<std::uint8_t, 16> device{};  ///< UUID
  std::vector<Part> parts;                ///< one behind the other they are the memory
};

/// The attribute that tells the table of an arena from that of an object.
inline constexpr const char* kArenaAttribute = "onecopy.arena";

/// Throws invalid_argument for a name that comes twice.
void check_names(const std::vector<Row>& rows);
/// Places the rows one behind the other, and returns the bytes that they take. Throws what check_names() throws, and
/// invalid_argument for more than 2^62 bytes.
std::uint64_t place(std::vector<Row>& rows);

Bytes encode(const Table& table);
/// Throws bad_handle if the bytes contradict themselves: rows outside the memory, names that come twice, a checksum that is wrong.
/// If the layout is `known`, byte for byte, the rows are not read.
Table decode_table(ByteSpan bytes, ByteSpan known = {});
/// The part of an encoded table that says names, layouts and offsets, to be compared. REQUIRES: decode_table() took it.
ByteSpan layout_of(ByteSpan table) noexcept;

/// The first difference between two layouts, in words: "'b' is float32[2] and was float32[3]"; empty if there is none.
std::string first_difference(const std::vector<Row>& before, const std::vector<Row>& after);

}  // namespace onecopy::store
