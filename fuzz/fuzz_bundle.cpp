// SPDX-License-Identifier: Apache-2.0
// Tables of bundles: for any content, and for any writes after opening, a reader stays inside of them; a row that can
// be read whole can be written again.
#include <algorithm>
#include <memory>

#include "fuzz_input.h"
#include "share/format/bundle_codec.h"

namespace onecopy::fuzz {
namespace {

/// A copy of the bytes in memory of exactly their size, so that the address sanitizer reports an access behind their
/// end.
class SharedTable {
 public:
  explicit SharedTable(ByteSpan bytes) : memory_(new std::byte[bytes.size()]), size_(bytes.size()) {
    std::copy(bytes.begin(), bytes.end(), memory_.get());
  }
  ByteSpan bytes() const noexcept { return {memory_.get(), size_}; }

  /// Overwrites bytes as a process that has gone wrong might. An instruction has 4 bytes: a place (2) and a value.
  void scribble(ByteSpan instructions) {
    for (std::size_t i = 0; i + 4 <= instructions.size() && size_ != 0; i += 4)
      memory_[load<std::uint16_t>(instructions.data() + i) % size_] = instructions[i + 2];
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t size_;
};

bool read_row(const BundleReader& reader, std::size_t row, BundleWriter& copy) {
  const auto fields = accepted({ErrorCode::bad_handle}, [&] { return reader.fields(row); });
  const auto name = accepted({ErrorCode::bad_handle}, [&] { return reader.name(row); });
  if (name) {
    const auto found = reader.find(*name);
    require(!found || *found < reader.size(), "find() names a row");
  }
  if (!fields || !name) return false;
  const std::uint64_t extent = fields->layout.extent_bytes();
  require(fields->storage_size <= fields->segment_size, "the storage lies inside the segment");
  require(extent <= fields->storage_size && fields->tensor_offset <= fields->storage_size - extent,
          "the tensor lies inside the storage");
  copy.add(*name, *fields);
  return true;
}

bool read_all(const BundleReader& reader, BundleWriter& copy) {
  bool whole = true;
  for (std::size_t row = 0; row < reader.size(); ++row) whole = read_row(reader, row, copy) && whole;
  return whole;
}

void check_copy(const BundleReader& reader, const Bytes& table) {
  const BundleReader copy(table);
  require(copy.size() == reader.size(), "a copy has as many rows");
  require(std::equal(copy.structure().begin(), copy.structure().end(), reader.structure().begin(),
                     reader.structure().end()),
          "a copy has the same structure");
  for (std::size_t row = 0; row < reader.size(); ++row) {
    require(copy.fields(row) == reader.fields(row), "a copy has the same rows");
    require(copy.name(row) == reader.name(row), "a copy has the same names");
    require(reader.find(reader.name(row)).value() <= row, "every name is found, its first row first");
  }
}

void check_table(ByteSpan bytes, ByteSpan instructions) {
  SharedTable table(bytes);
  const auto reader = accepted({ErrorCode::bad_handle, ErrorCode::version_mismatch},
                               [&] { return std::make_unique<BundleReader>(table.bytes()); });
  if (!reader) return;
  BundleWriter copy;
  if (read_all(**reader, copy)) check_copy(**reader, copy.finish((*reader)->structure()));
  table.scribble(instructions);
  BundleWriter ignored;
  (void)read_all(**reader, ignored);
}

/// Returns the input with a valid beginning, length and checksums, so that later checks are reached. The structure
/// section fills the space that the other sections leave.
Bytes sealed(ByteSpan input) {
  static constexpr std::uint8_t kStart[] = {'1', 'C', 'B', 'N', 'D', 0, 1, 0};
  Bytes bytes(input.begin(), input.end());
  if (bytes.size() < 64) return bytes;
  std::byte* at = bytes.data();
  write_value(at, kStart);
  write_value(at + 24, std::uint64_t{bytes.size()});
  const std::uint64_t others = load<std::uint32_t>(at + 32) * std::uint64_t{48} +
                               load<std::uint32_t>(at + 36) * std::uint64_t{64} +
                               load<std::uint64_t>(at + 40) + load<std::uint64_t>(at + 48);
  write_value(at + 56, bytes.size() - 64 - others);
  write_value(at + 8, std::uint32_t{0});
  write_value(at + 12, crc32c(ByteSpan(bytes).subspan(64)));
  write_value(at + 8, crc32c(ByteSpan(bytes).first(64)));
  return bytes;
}

}  // namespace
}  // namespace onecopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onecopy::fuzz;
  const auto input = span_of(data, size);
  const std::size_t instructions = std::min<std::size_t>(size / 8, 32);
  check_table(input, input.first(instructions));
  check_table(sealed(input.subspan(instructions)), input.first(instructions));
  return 0;
}
