// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "onecopy/core/bytes.h"
#include "onecopy/share/handle_fields.h"
#include "os/mutex.h"

namespace onecopy {

inline constexpr std::size_t kBundleHeaderSize = 64;
inline constexpr std::size_t kBundleOriginSize = 64;
inline constexpr std::size_t kBundleRowSize = 48;

/// Collects the rows of a bundle and writes its table: docs/design/formats/bundle-v1.md.
/// Thread safety: none.
class BundleWriter {
 public:
  void reserve(std::size_t rows);
  /// Adds a row. Names may repeat. Throws invalid_argument, also for a name that is not UTF-8. REQUIRES: all rows are
  /// of one boot and have no hold, timeline or bundle flag, which belong to the bundle's handle.
  void add(std::string_view name, const HandleFields& fields);
  std::size_t size() const noexcept { return rows_; }

  std::size_t finished_size(std::size_t structure_size) const noexcept;
  /// Writes the table. REQUIRES: out.size() == finished_size(structure.size()).
  void finish(ByteSpan structure, std::span<std::byte> out) const;
  Bytes finish(ByteSpan structure = {}) const;

 private:
  using EncodedOrigin = std::array<std::byte, kBundleOriginSize>;

  std::uint32_t origin_of(const HandleFields& fields);

  BootId boot_{};
  std::size_t rows_ = 0;
  std::map<EncodedOrigin, std::uint32_t> origin_numbers_;
  EncodedOrigin last_origin_{};
  std::uint32_t last_origin_number_ = 0;
  Bytes origin_bytes_;
  Bytes row_bytes_;
  Bytes dim_bytes_;
  Bytes name_bytes_;
};

/// Reads a bundle's table in place. The maker of the table may still write to it. Therefore sizes and counts are
/// copied and checked once, and rows are copied before they are checked. Damage after opening gives bad_handle or
/// wrong names, never a wild access or an endless loop.
///
/// Thread safety: all members may be called concurrently. The table must outlive the reader.
class BundleReader {
 public:
  /// Checks magic, version, both checksums, the sections' sizes and the origins. Throws bad_handle, version_mismatch.
  /// Rows and names are checked on access.
  explicit BundleReader(ByteSpan table);

  std::size_t size() const noexcept { return row_count_; }
  /// Returns a private, checked copy of the segments that rows lie in.
  std::span<const SegmentOrigin> origins() const noexcept { return origins_; }

  /// Returns a view into the table. Throws invalid_argument for a row that does not exist, bad_handle.
  std::string_view name(std::size_t row) const;
  /// Returns the row as the fields of a handle of its own, checked like a handle's. Throws as name() does.
  HandleFields fields(std::size_t row) const;
  /// Returns a view of the bytes that the writer gave to finish().
  ByteSpan structure() const noexcept { return structure_; }
  /// Returns the first row of this name. The first call builds an index.
  std::optional<std::size_t> find(std::string_view name) const;

 private:
  void read_origins();
  std::optional<std::string_view> try_name(std::size_t row) const;
  void build_index() const;

  BootId boot_{};
  std::uint32_t row_count_ = 0;
  ByteSpan origin_section_;
  ByteSpan row_section_;
  ByteSpan dim_section_;
  ByteSpan name_section_;
  ByteSpan structure_;
  std::vector<SegmentOrigin> origins_;
  mutable Mutex index_mutex_;
  mutable std::atomic<bool> indexed_{false};
  /// A hash table by name with open addressing: row + 1, or 0 if free.
  mutable std::vector<std::uint32_t> index_;
};

}  // namespace onecopy

/// The bytes of docs/design/formats/bundle-v1.md. Sections follow the header without gaps: origins, rows, dimensions,
/// names, structure.
namespace onecopy::bundle_format {

inline constexpr char kMagic[6] = {'1', 'C', 'B', 'N', 'D', '\0'};
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kDimSize = 16;  ///< size and stride
/// The max size of a section: rows address dimensions and names with 32 bits.
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

/// A tensor: its origin, block and layout.
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
