// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/utf8.h"
#include "onecopy/core/error.h"
#include "share/format/bundle_codec.h"
#include "share/format/field_checks.h"

namespace onecopy {

using namespace bundle_format;

namespace {

template <class T>
void append(Bytes& out, const T& value) {
  const std::size_t at = out.size();
  out.resize(at + sizeof value);
  store(out.data() + at, value);
}

/// The offset of the bytes to be appended. Throws if the section could not be addressed afterwards.
std::uint32_t room_for(const Bytes& section, std::size_t more, const char* what) {
  if (section.size() + more > kMaxSection)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("The {} of this bundle need more than 4 GiB: share it in parts.", what));
  return static_cast<std::uint32_t>(section.size());
}

std::byte* put(ByteSpan section, std::byte* at) noexcept {
  return std::copy(section.begin(), section.end(), at);
}

Origin bytes_of(const HandleFields& f) noexcept {
  return {f.owner,
          f.maker,
          f.device,
          f.segment,
          static_cast<std::uint8_t>(f.device_type),
          static_cast<std::uint8_t>(f.kind),
          0,
          f.segment_size};
}

}  // namespace

void BundleWriter::reserve(std::size_t rows) {
  row_bytes_.reserve(rows * kBundleRowSize);
  dim_bytes_.reserve(rows * 2 * kDimSize);
}

std::uint32_t BundleWriter::origin_of(const HandleFields& fields) {
  const auto origin = std::bit_cast<EncodedOrigin>(bytes_of(fields));
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
    throw Error(ErrorCode::invalid_argument,
                fmt::format("Row {} cannot be put into a bundle: it {}.", rows_, wrong));
  const std::size_t dims = kDimSize * f.layout.ndim();
  Row r;
  r.dims_offset = room_for(dim_bytes_, dims, "shapes");
  r.name_offset = room_for(name_bytes_, name.size(), "names");
  r.name_length = static_cast<std::uint32_t>(name.size());
  r.origin = origin_of(f);
  r.block = f.block;
  r.generation = f.generation;
  r.storage_size = f.storage_size;
  r.tensor_offset = f.tensor_offset;
  r.dtype = static_cast<std::uint8_t>(f.layout.dtype());
  r.ndim = static_cast<std::uint8_t>(f.layout.ndim());
  r.flags = static_cast<std::uint16_t>(f.flags);
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
  store(out.data(), h);
}

Bytes BundleWriter::finish(ByteSpan structure) const {
  Bytes out(finished_size(structure.size()));
  finish(structure, out);
  return out;
}

}  // namespace onecopy
