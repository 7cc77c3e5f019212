// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/throw_error.h"
#include "os/memfd.h"
#include "store/client/state.h"

namespace onecopy::store {
namespace {

constexpr std::uint64_t kMaxTable = std::uint64_t{1} << 31;
constexpr std::size_t kPiece = std::size_t{16} << 20;

}  // namespace

Mapping map_table(const Fd& fd) {
  const std::uint64_t size = file_size(fd);
  if (size == 0 || size > kMaxTable ||
      (seals_of(fd) & (kSealShrink | kSealWrite)) != (kSealShrink | kSealWrite))
    throw Error(ErrorCode::bad_handle, "the descriptor of a version's table is not a sealed table");
  return Mapping::of(fd, size, Access::read_only);
}

/// Reads memory of a device piece by piece, through memory of the host.
std::uint32_t checksum(std::byte* at, std::uint64_t bytes, Device device) {
  if (device == kCpu) return crc32c({at, bytes});
  Bytes piece(std::min<std::uint64_t>(bytes, kPiece));
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < bytes; done += piece.size()) {
    piece.resize(std::min<std::uint64_t>(bytes - done, kPiece));
    copy_bytes_and_wait({piece.data(), kCpu, at + done, device, piece.size()});
    crc = crc32c(piece, crc);
  }
  return crc;
}

OpenTable::OpenTable(const Fd& fd, ByteSpan known)
    : bytes(map_table(fd)), table(decode_table({bytes.data(), bytes.size()}, known)) {}

Fd write_table(const Table& table) {
  const Bytes bytes = encode(table);
  Fd fd = create_memfd("onecopy-store-table", bytes.size());
  std::memcpy(Mapping::of(fd, bytes.size(), Access::read_write).data(), bytes.data(), bytes.size());
  add_seals(fd, kSealWrite);
  return fd;
}

std::vector<ExportedMemory> memory_of(const Table& table, std::vector<Fd> files) {
  std::vector<ExportedMemory> memory;
  auto next = files.begin() + 1;
  for (const Part& part : table.parts) {
    if (part.files > files.end() - next)
      throw Error(ErrorCode::bad_handle, "a stored version came without descriptors of its chunks");
    const auto first = std::exchange(next, next + part.files);
    memory.push_back({static_cast<SegmentKind>(part.kind),
                      part.bytes,
                      {std::move_iterator(first), std::move_iterator(next)},
                      part.blob,
                      Uuid{table.device}});
  }
  return memory;
}

Device device_of(const Table& table) {
  const auto type = static_cast<DeviceType>(table.device_type);
  if (type == DeviceType::cpu) return kCpu;
  return find_device(type, Uuid{table.device});
}

void check_sealed(const VersionRecord& version, const Table& table, std::span<const Fd> files) {
  constexpr int kUnchangeable = kSealShrink | kSealGrow | kSealWrite;
  if (version.kind != VersionKind::copied || device_of(table) != kCpu) return;
  for (const Fd& chunk : files.subspan(1))
    if ((seals_of(chunk) & kUnchangeable) != kUnchangeable)
      throw_error(ErrorCode::bad_handle,
                  "the memory of version {} of \"{}\" is not sealed: its publisher could still "
                  "change it; publish it again",
                  version.number, version.name);
}

std::vector<std::uint32_t> checksums_of(const Table& table, const MappedMemory& memory) {
  std::vector<std::uint32_t> checksums;
  const std::vector<std::size_t> first = first_of_each(table.rows);
  for (std::size_t at = 0; at < table.rows.size(); ++at) {
    const Row& row = table.rows[at];
    checksums.push_back(first[at] < at
                            ? checksums[first[at]]
                            : checksum(memory.data() + row.offset, row.layout.nbytes(), memory.device()));
  }
  return checksums;
}

}  // namespace onecopy::store
