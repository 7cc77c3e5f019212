// SPDX-License-Identifier: Apache-2.0
#include "store/format/table.h"

#include <fmt/format.h>

#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "core/fields.h"
#include "core/throw_error.h"

namespace onecopy::store {
namespace {

constexpr std::uint64_t kMagic = 0x326C6254796E6F4F;  // "OonyTbl2"
constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 62;
constexpr std::uint64_t kMaxBytesBeside = std::uint64_t{1} << 30;

/// The fields at the beginning of a table. The layout follows, then the rest.
struct TableHead {
  std::uint64_t magic = kMagic;
  std::uint32_t crc = 0;  ///< a checksum of all bytes after this field
  std::uint32_t rows = 0;
  std::uint64_t layout_bytes = 0;

  void fields(auto& f) { f(magic, crc, rows, layout_bytes); }
};
constexpr std::size_t kHeadBytes = 24;
constexpr std::size_t kCheckedFrom = 12;

[[noreturn]] void refuse(const std::string& problem) {
  throw Error(ErrorCode::bad_handle, "the table of a stored version " + problem);
}

std::uint64_t rounded(std::uint64_t bytes) noexcept {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Row row_in(FieldReader& reader, std::vector<std::int64_t>& shape) {
  Row row;
  DType dtype{};
  std::uint8_t ndim = 0;
  reader(row.offset, dtype, ndim);
  if (!is_valid(dtype) || ndim > kMaxDims) refuse("has an impossible row");
  shape.resize(ndim);
  for (std::int64_t& size : shape) reader(size);
  reader(row.name);
  try {
    row.layout = Layout(dtype, shape);
  } catch (const Error&) {
    refuse("has an impossible shape");
  }
  return row;
}

std::vector<Row> rows_in(ByteSpan layout, std::uint32_t count) {
  if (count > layout.size()) refuse("is cut off");
  FieldReader reader(layout, ErrorCode::bad_handle, "the table of a stored version");
  std::vector<Row> rows;
  rows.reserve(count);
  std::vector<std::int64_t> shape;
  while (rows.size() != count) rows.push_back(row_in(reader, shape));
  reader.end();
  return rows;
}

void check_parts(const Table& table) {
  std::uint64_t left = table.size;
  for (const Part& part : table.parts) {
    if (part.bytes > left) refuse("has parts of more than its bytes");
    left -= part.bytes;
  }
  if (left != 0) refuse("has parts of less than its bytes");
}

void check_rows(const Table& table) {
  std::unordered_set<std::string_view> names;
  for (const Row& row : table.rows) {
    if (row.offset % size_of(row.layout.dtype()) != 0 || row.offset > table.size ||
        row.layout.nbytes() > table.size - row.offset)
      refuse(fmt::format("has a row outside its {} bytes", table.size));
    if (!names.insert(row.name).second || table.bytes.contains(row.name)) refuse("has a name twice");
  }
}

}  // namespace

void check_names(const std::vector<Row>& rows) {
  std::unordered_set<std::string_view> names;
  for (const Row& row : rows) {
    if (row.name.empty())
      throw Error(ErrorCode::invalid_argument, "a tensor of the version has no name; give each one a name");
    if (!names.insert(row.name).second)
      throw_error(ErrorCode::invalid_argument, "there are two tensors named \"{}\"", row.name);
  }
}

std::uint64_t size_of_bytes(const Table& table) {
  std::uint64_t size = 0;
  for (const auto& [name, content] : table.bytes) size += content.size();
  if (size > kMaxBytesBeside)
    throw_error(ErrorCode::invalid_argument,
                "the bytes beside the tensors have {} bytes, and 1 GiB is the max; publish large "
                "ones as a tensor of uint8",
                size);
  for (const Row& row : table.rows)
    if (table.bytes.contains(row.name))
      throw_error(ErrorCode::invalid_argument, "\"{}\" is the name of a tensor and of bytes", row.name);
  return size;
}

std::uint64_t assign_offsets(std::vector<Row>& rows, std::span<const std::size_t> first) {
  check_names(rows);
  std::uint64_t end = 0;
  for (std::size_t at = 0; at < rows.size(); ++at) {
    Row& row = rows[at];
    if (!first.empty() && first[at] < at) {
      row.offset = rows[first[at]].offset;
      continue;
    }
    if (row.layout.nbytes() > kMaxSize - end)
      throw Error(ErrorCode::invalid_argument, "the tensors have more than 2^62 bytes");
    row.offset = end;
    end = rounded(end + row.layout.nbytes());
  }
  return end;
}

std::vector<std::size_t> first_of_each(const std::vector<Row>& rows) {
  std::vector<std::size_t> first(rows.size());
  std::unordered_map<std::uint64_t, std::size_t> seen;  // the first row at each place
  for (std::size_t at = 0; at < rows.size(); ++at) {
    first[at] = at;
    if (rows[at].layout.nbytes() == 0) continue;
    const std::size_t before = seen.try_emplace(rows[at].offset, at).first->second;
    if (rows[before].layout == rows[at].layout) first[at] = before;
  }
  return first;
}

Bytes encode(const Table& table) {
  FieldWriter layout;
  for (const Row& row : table.rows) {
    layout(row.offset, row.layout.dtype(), static_cast<std::uint8_t>(row.layout.ndim()));
    for (const std::int64_t size : row.layout.shape()) layout(size);
    layout(row.name);
  }
  const Bytes rows = layout.take();
  FieldWriter rest;
  rest(table.size, table.key, table.attributes, table.checksums, table.device_type, table.device,
       table.parts, table.bytes);
  const Bytes behind = rest.take();
  Bytes bytes =
      write_fields(TableHead{kMagic, 0, static_cast<std::uint32_t>(table.rows.size()), rows.size()});
  bytes.insert(bytes.end(), rows.begin(), rows.end());
  bytes.insert(bytes.end(), behind.begin(), behind.end());
  write_value(bytes.data() + sizeof kMagic, crc32c(ByteSpan(bytes).subspan(kCheckedFrom)));
  return bytes;
}

Table decode_table(ByteSpan bytes, ByteSpan known) {
  FieldReader reader(bytes, ErrorCode::bad_handle, "the table of a stored version");
  TableHead head;
  reader(head);
  if (head.magic != kMagic) refuse("is not one, or of another version of onecopy");
  if (head.crc != crc32c(bytes.subspan(kCheckedFrom))) refuse("is damaged: its checksum is wrong");
  const ByteSpan layout = reader.take(head.layout_bytes);
  Table table;
  // std::equal() would compare one std::byte after the other.
  table.has_known_layout = known.size() == layout.size() &&
                           (known.empty() || std::memcmp(known.data(), layout.data(), known.size()) == 0);
  if (!table.has_known_layout || known.empty()) table.rows = rows_in(layout, head.rows);
  reader(table.size, table.key, table.attributes, table.checksums, table.device_type, table.device,
         table.parts, table.bytes);
  reader.end();
  if (!table.checksums.empty() && table.checksums.size() != head.rows) refuse("has too few checksums");
  check_parts(table);
  check_rows(table);
  return table;
}

ByteSpan layout_of(ByteSpan table) noexcept {
  return table.subspan(kHeadBytes, load<std::uint64_t>(table.data() + kHeadBytes - sizeof(std::uint64_t)));
}

std::string first_difference(const std::vector<Row>& before, const std::vector<Row>& after) {
  for (std::size_t i = 0; i < before.size() && i < after.size(); ++i) {
    const Row &was = before[i], &is = after[i];
    if (was.name != is.name) return fmt::format("tensor {} is \"{}\" and was \"{}\"", i, is.name, was.name);
    if (!(was.layout == is.layout))
      return fmt::format("\"{}\" is {} and was {}", is.name, is.layout.str(), was.layout.str());
    if (was.offset != is.offset) return fmt::format("\"{}\" lies at another place", is.name);
  }
  if (after.size() > before.size()) return fmt::format("\"{}\" is new", after[before.size()].name);
  if (after.size() < before.size()) return fmt::format("\"{}\" is missing", before[after.size()].name);
  return {};
}

}  // namespace onecopy::store
