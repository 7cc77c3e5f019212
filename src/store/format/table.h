// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "onecopy/core/bytes.h"
#include "onecopy/core/layout.h"

namespace onecopy::store {

/// The alignment of the tensors of a slot, in bytes.
inline constexpr std::size_t kAlignment = 512;

/// A tensor of a version, row-major.
struct Row {
  std::string name;
  Layout layout;
  std::uint64_t offset = 0;  ///< bytes from the beginning of the version's memory

  bool operator==(const Row&) const = default;
};

/// A part of a version's memory that was exported as a whole, see ExportedMemory. A slot is one part.
struct Part {
  std::uint64_t bytes = 0;
  std::uint32_t files = 0;  ///< descriptors
  std::uint8_t kind = 0;
  Bytes blob;

  void fields(auto& f) { f(bytes, files, kind, blob); }
  bool operator==(const Part&) const = default;
};

/// The table of a version: all data but the elements. Each table has a memfd of its own, sealed against all changes.
struct Table {
  std::vector<Row> rows;  ///< names are unique
  /// Says that decode_table() found the layout that its caller knows, and did not read the rows.
  bool has_known_layout = false;
  std::uint64_t size = 0;  ///< the size of the version's memory, of which the rows use a part
  std::map<std::string, std::string> key;
  std::map<std::string, std::string> attributes;
  std::map<std::string, std::string> bytes;  ///< by names that no row has
  std::vector<std::uint32_t> checksums;      ///< one for each row, or empty
  std::uint8_t device_type = 0;
  std::array<std::uint8_t, 16> device{};  ///< UUID
  std::vector<Part> parts;                ///< joined in this order they are the version's memory
};

/// Checks that each row has a name of its own. Throws invalid_argument.
void check_names(const std::vector<Row>& rows);
/// Places the rows one after another and returns their total size in bytes. A row for which `first` has another number
/// than its own gets the place of the row with that number, which comes before it. Throws invalid_argument for a name
/// that comes twice and for more than 2^62 bytes.
std::uint64_t assign_offsets(std::vector<Row>& rows, std::span<const std::size_t> first = {});
/// Returns for each row the number of the first row with the same place and layout, which may be its own.
std::vector<std::size_t> first_of_each(const std::vector<Row>& rows);

/// Returns the size of all bytes beside the tensors. Throws invalid_argument for more than 1 GiB, and for a name that a row has.
std::uint64_t size_of_bytes(const Table& table);

Bytes encode(const Table& table);
/// Decodes a table. Throws bad_handle for rows outside the memory, names that come twice, a wrong checksum and other
/// contradictions. If the layout equals `known` byte for byte, the rows are not read.
Table decode_table(ByteSpan bytes, ByteSpan known = {});
/// Returns the part of an encoded table that contains the names, layouts and offsets, for comparisons. REQUIRES:
/// decode_table() has accepted the table.
ByteSpan layout_of(ByteSpan table) noexcept;

/// Returns the first difference between two layouts in words, e.g. "'b' is float32[2] and was float32[3]"; empty if
/// there is none.
std::string first_difference(const std::vector<Row>& before, const std::vector<Row>& after);

}  // namespace onecopy::store
