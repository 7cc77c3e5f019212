// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "onecopy/core/bytes.h"
#include "share/format/bundle_codec.h"

/// The bytes of docs/design/formats/bundle-v1.md, between bundle_writer.cpp and bundle_reader.cpp. Sections
/// follow the header without gaps: origins, rows, dimensions, names, structure.
namespace onecopy::bundle_format {

inline constexpr char kMagic[6] = {'1', 'C', 'B', 'N', 'D', '\0'};
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kDimSize = 16;  ///< size and stride
/// Rows address dimensions and names with 32 bits.
inline constexpr std::uint64_t kMaxSection = UINT32_MAX;

/// The first bytes of a table: magic, version, checksums and the sizes of its sections.
struct Header {
  char magic[6];
  std::uint16_t version;
  std::uint32_t header_crc;
  std::uint32_t sections_crc;
  BootId boot;
  std::uint64_t length;
  std::uint32_t rows;
  std::uint32_t origins;
  std::uint64_t dims_length;
  std::uint64_t names_length;
  std::uint64_t structure_length;
};
static_assert(sizeof(Header) == kBundleHeaderSize && std::has_unique_object_representations_v<Header>);

/// A segment that rows lie in.
struct Origin {
  ProcessId owner;
  ProcessId maker;
  Uuid device;
  std::uint32_t segment;
  std::uint8_t device_type;
  std::uint8_t kind;
  std::uint16_t reserved;
  std::uint64_t segment_size;
};
static_assert(sizeof(Origin) == kBundleOriginSize && std::has_unique_object_representations_v<Origin>);

/// One tensor: its origin, block and layout.
struct Row {
  std::uint32_t origin;
  std::uint32_t block;
  std::uint64_t generation;
  std::uint64_t storage_size;
  std::uint64_t tensor_offset;
  std::uint8_t dtype;
  std::uint8_t ndim;
  std::uint16_t flags;
  std::uint32_t dims_offset;
  std::uint32_t name_offset;
  std::uint32_t name_length;
};
static_assert(sizeof(Row) == kBundleRowSize && std::has_unique_object_representations_v<Row>);

inline std::uint32_t header_checksum(Header header) noexcept {
  header.header_crc = 0;
  return crc32c(std::as_bytes(std::span(&header, 1)));
}

}  // namespace onecopy::bundle_format
