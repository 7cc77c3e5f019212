// SPDX-License-Identifier: Apache-2.0
// Handles: decoding refuses or yields consistent fields, which encode to the same bytes.
#include <algorithm>

#include "fuzz_input.h"
#include "onecopy/share/handle_fields.h"

namespace onecopy::fuzz {
namespace {

void check_handle(ByteSpan bytes) {
  const auto fields =
      accepted({ErrorCode::bad_handle, ErrorCode::version_mismatch}, [&] { return decode_handle(bytes); });
  if (!fields) return;
  const std::uint64_t extent = fields->layout.extent_bytes();
  require(fields->storage_size <= fields->segment_size, "the storage lies inside the segment");
  require(extent <= fields->storage_size && fields->tensor_offset <= fields->storage_size - extent,
          "the tensor lies inside the storage");
  require(fields->generation <= kMaxHandleGeneration, "generations have 62 bits");
  const Bytes again = encode(*fields);
  require(decode_handle(again) == *fields, "fields survive encoding");
  const bool parts_skipped = again.size() < bytes.size();
  require(parts_skipped || std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()),
          "one handle has one encoding");
}

/// Returns the input with a valid beginning and checksum, so that later checks are reached.
Bytes sealed(ByteSpan input) {
  static constexpr std::uint8_t kStart[] = {'1', 'C', 'O', 'P', 'Y', 0, 1, 0};
  Bytes bytes(input.begin(), input.end());
  if (bytes.size() < 128) return bytes;
  write_value(bytes.data(), kStart);
  write_value(bytes.data() + 8, static_cast<std::uint32_t>(bytes.size()));
  write_value(bytes.data() + 12, std::uint32_t{0});
  write_value(bytes.data() + 12, crc32c(bytes));
  return bytes;
}

}  // namespace
}  // namespace onecopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onecopy::fuzz;
  const auto input = span_of(data, size);
  check_handle(input);
  check_handle(sealed(input));
  return 0;
}
