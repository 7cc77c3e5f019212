// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "core/throw_error.h"
#include "core/utf8.h"
#include "share/format/bundle_codec.h"
#include "share/format/field_checks.h"

namespace onecopy {

using namespace bundle_format;

namespace {

template <class T>
void append(Bytes& out, const T& value) {
  const std::size_t at = out.size();
  out.resize(at + sizeof value);
  write_value(out.data() + at, value);
}

/// Returns the offset of the bytes to be appended. Throws if the section could not be addressed afterwards.
std::uint32_t room_for(const Bytes& section, std::size_t more, const char* what) {
  if (section.size() + more > kMaxSection)
    throw_error(ErrorCode::invalid_argument,
                "The {} of this bundle need more than 4 GiB: share it in parts.", what);
  return static_cast<std::uint32_t>(section.size());
}

std::byte* put(ByteSpan section, std::byte* at) noexcept {
  return std::copy(section.begin(), section.end(), at);
}

}  // namespace

void BundleWriter::reserve(std::size_t rows) {
  row_bytes_.reserve(rows * kBundleRowSize);
  dim_bytes_.reserve(rows * 2 * kDimSize);
}

std::uint32_t BundleWriter::origin_of(const HandleFields& fields) {
  Origin bytes{};
  write_segment(fields, bytes);
  const auto origin = std::bit_cast<EncodedOrigin>(bytes);
  if (rows_ != 0 && origin == last_origin_) return last_origin_number_;
  const auto next = static_cast<std::uint32_t>(origin_numbers_.size());
  const auto [found, is_new] = origin_numbers_.try_emplace(origin, next);
  if (is_new) append(origin_bytes_, origin);
  last_origin_ = origin;
  last_origin_number_ = found->second;
  return last_origin_number_;
}

void BundleWriter::add(std::string_view name, const HandleFields& f) {
  const char* wrong = nullptr;
  if (f.is_bundle()) wrong = "is itself a bundle";
  if ((f.flags & ~(kHandleIsBundle | kHandleIsReadOnly)) != 0) wrong = "has unknown flags";
  if (f.hold != 0 || f.timeline_slot != 0 || f.timeline_value != 0)
    wrong = "has a hold or timeline of its own";
  if (rows_ != 0 && f.boot != boot_) wrong = "is from another boot than the rows before it";
  if (!is_utf8(name)) wrong = "has a name that is not UTF-8";
  if (rows_ >= kMaxSection - 1) wrong = "is one too many";
  if (wrong)
    throw_error(ErrorCode::invalid_argument, "Row {} cannot be put into a bundle: it {}.", rows_, wrong);
  const std::size_t dims = kDimSize * f.layout.ndim();
  Row r;
  r.dims_offset = room_for(dim_bytes_, dims, "shapes");
  r.name_offset = room_for(name_bytes_, name.size(), "names");
  r.name_length = static_cast<std::uint32_t>(name.size());
  r.origin = origin_of(f);
  write_block(f, r);
  boot_ = f.boot;
  append(row_bytes_, r);
  dim_bytes_.resize(r.dims_offset + dims);
  store_dims(f.layout, dim_bytes_.data() + r.dims_offset);
  const auto* text = reinterpret_cast<const std::byte*>(name.data());
  name_bytes_.insert(name_bytes_.end(), text, text + name.size());
  ++rows_;
}

std::size_t BundleWriter::finished_size(std::size_t structure_size) const noexcept {
  return sizeof(Header) + origin_bytes_.size() + row_bytes_.size() + dim_bytes_.size() +
         name_bytes_.size() + structure_size;
}

void BundleWriter::finish(ByteSpan structure, std::span<std::byte> out) const {
  std::byte* at = out.data() + sizeof(Header);
  for (const ByteSpan section : {ByteSpan(origin_bytes_), ByteSpan(row_bytes_), ByteSpan(dim_bytes_),
                                 ByteSpan(name_bytes_), structure})
    at = put(section, at);
  Header h;
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.version = kVersion;
  h.header_crc = 0;
  h.sections_crc = crc32c(out.subspan(sizeof h));
  h.boot = boot_;
  h.length = out.size();
  h.rows = static_cast<std::uint32_t>(rows_);
  h.origins = static_cast<std::uint32_t>(origin_numbers_.size());
  h.dims_length = dim_bytes_.size();
  h.names_length = name_bytes_.size();
  h.structure_length = structure.size();
  h.header_crc = header_checksum(h);
  write_value(out.data(), h);
}

Bytes BundleWriter::finish(ByteSpan structure) const {
  Bytes out(finished_size(structure.size()));
  finish(structure, out);
  return out;
}

namespace {

constexpr Subject kTable{"bundle's table"};

Header checked_header(ByteSpan table) {
  Header h;
  if (table.size() < sizeof h)
    refuse(kTable, "is cut off: it has {} bytes, and its header alone has {}", table.size(), sizeof h);
  copy_once(&h, table.data(), sizeof h);
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0)
    refuse(kTable, "is none: it does not begin with \"1CBND\"");
  if (h.version != kVersion)
    throw_error(ErrorCode::version_mismatch,
                "This bundle has format version {}, this program reads version {}: use the same "
                "version of onecopy on both sides.",
                h.version, kVersion);
  if (const std::uint32_t crc = header_checksum(h); crc != h.header_crc)
    refuse(kTable, "is damaged: the checksum of its header is {:08x}, it should be {:08x}", crc,
           h.header_crc);
  if (h.length != table.size())
    refuse(kTable, "says that it has {} bytes, but {} are here", h.length, table.size());
  return h;
}

/// Cuts sections off the front of the bytes that follow the header.
class SectionCutter {
 public:
  explicit SectionCutter(ByteSpan rest) : rest_(rest) {}

  ByteSpan cut(std::uint64_t count, std::uint64_t each, const char* what) {
    if (count > rest_.size() / each)
      refuse(kTable, "says that its {} take {} x {} bytes, but only {} are left for them", what, count,
             each, rest_.size());
    const ByteSpan section = rest_.first(count * each);
    rest_ = rest_.subspan(section.size());
    return section;
  }
  std::size_t left() const noexcept { return rest_.size(); }

 private:
  ByteSpan rest_;
};

SegmentOrigin checked_origin(const std::byte* at, std::size_t number) {
  Origin o;
  copy_once(&o, at, sizeof o);
  const Subject subject{"Origin", static_cast<std::int64_t>(number)};
  SegmentOrigin origin;
  read_segment(subject, o, origin);
  if (o.reserved != 0) refuse(subject, "has {} in its reserved bytes", o.reserved);
  return origin;
}

Subject row_subject(std::size_t row) noexcept { return {"Row", static_cast<std::int64_t>(row)}; }

/// Returns a private copy, which cannot change between check and use.
Row row_bytes(ByteSpan rows, std::size_t row) {
  if (row >= rows.size() / kBundleRowSize)
    throw_error(ErrorCode::invalid_argument, "There is no row {}: the bundle has {}.", row,
                rows.size() / kBundleRowSize);
  Row r;
  copy_once(&r, rows.data() + row * kBundleRowSize, sizeof r);
  return r;
}

/// Returns nothing if the name lies outside of its section or is not UTF-8.
std::optional<std::string_view> name_in(ByteSpan names, const Row& r) noexcept {
  if (r.name_offset > names.size() || r.name_length > names.size() - r.name_offset) return std::nullopt;
  const std::string_view name(reinterpret_cast<const char*>(names.data()) + r.name_offset, r.name_length);
  return is_utf8(name) ? std::optional(name) : std::nullopt;
}

std::size_t hash_of(std::string_view name) noexcept { return std::hash<std::string_view>{}(name); }

}  // namespace

BundleReader::BundleReader(ByteSpan table) {
  const Header h = checked_header(table);
  boot_ = h.boot;
  row_count_ = h.rows;
  SectionCutter sections(table.subspan(sizeof h));
  origin_section_ = sections.cut(h.origins, kBundleOriginSize, "origins");
  row_section_ = sections.cut(h.rows, kBundleRowSize, "rows");
  dim_section_ = sections.cut(h.dims_length, 1, "dimensions");
  name_section_ = sections.cut(h.names_length, 1, "names");
  structure_ = sections.cut(h.structure_length, 1, "structure bytes");
  if (sections.left() != 0) refuse(kTable, "has {} bytes after its last section", sections.left());
  if (std::max(dim_section_.size(), name_section_.size()) > kMaxSection)
    refuse(kTable, "has a section of more than 4 GiB");
  if (const std::uint32_t crc = crc32c(table.subspan(sizeof h)); crc != h.sections_crc)
    refuse(kTable, "is damaged: the checksum of its rows is {:08x}, it should be {:08x}", crc,
           h.sections_crc);
  read_origins();
}

void BundleReader::read_origins() {
  const std::size_t count = origin_section_.size() / kBundleOriginSize;
  origins_.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    origins_.push_back(checked_origin(origin_section_.data() + i * kBundleOriginSize, i));
}

std::string_view BundleReader::name(std::size_t row) const {
  const Row r = row_bytes(row_section_, row);
  if (const auto name = name_in(name_section_, r)) return *name;
  refuse(row_subject(row),
         "has a name of {} bytes at byte {} that is not UTF-8 or lies outside of the "
         "{} bytes of names",
         r.name_length, r.name_offset, name_section_.size());
}

std::optional<std::string_view> BundleReader::try_name(std::size_t row) const {
  return name_in(name_section_, row_bytes(row_section_, row));
}

HandleFields BundleReader::fields(std::size_t row) const {
  const Row r = row_bytes(row_section_, row);
  const Subject subject = row_subject(row);
  if (r.origin >= origins_.size())
    refuse(subject, "names origin {}, but there are {}", r.origin, origins_.size());
  HandleFields f{origins_[r.origin], boot_};
  read_block(subject, r, kHandleIsReadOnly, f);
  const std::size_t dims = kDimSize * r.ndim;
  if (r.dims_offset > dim_section_.size() || dims > dim_section_.size() - r.dims_offset)
    refuse(subject, "has {} dimensions at byte {} of a section of {} bytes", r.ndim, r.dims_offset,
           dim_section_.size());
  f.layout = checked_layout(subject, r.dtype, r.ndim, dim_section_.data() + r.dims_offset, r.tensor_offset,
                            r.storage_size);
  return f;
}

/// Builds the index of names. Skips rows whose names cannot be read: name() reports the fault.
void BundleReader::build_index() const {
  std::vector<std::uint32_t> index(std::bit_ceil(std::size_t{row_count_} * 2 + 1));
  for (std::uint32_t row = 0; row < row_count_; ++row) {
    const auto found = try_name(row);
    if (!found) continue;
    std::size_t at = hash_of(*found) & (index.size() - 1);
    while (index[at] != 0 && try_name(index[at] - 1) != found) at = (at + 1) & (index.size() - 1);
    if (index[at] == 0) index[at] = row + 1;
  }
  index_ = std::move(index);
}

std::optional<std::size_t> BundleReader::find(std::string_view wanted) const {
  if (!indexed_.load(std::memory_order_acquire)) {
    const LockGuard lock(index_mutex_);
    if (!indexed_.load(std::memory_order_relaxed)) build_index();
    indexed_.store(true, std::memory_order_release);
  }
  for (std::size_t at = hash_of(wanted) & (index_.size() - 1); index_[at] != 0;
       at = (at + 1) & (index_.size() - 1))
    if (try_name(index_[at] - 1) == wanted) return index_[at] - 1;
  return std::nullopt;
}

}  // namespace onecopy
