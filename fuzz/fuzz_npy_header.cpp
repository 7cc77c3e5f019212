// SPDX-License-Identifier: Apache-2.0
// Headers of .npy files: refused, or the data lies inside of the file.
// The first two bytes of an input say how many bytes the file has after the head; the rest is the head.
#include "fuzz_input.h"
#include "memory/npy.h"

namespace onecopy::fuzz {
namespace {

void check_header(ByteSpan head, std::uint64_t file_size) {
  const auto header = accepted({ErrorCode::bad_file, ErrorCode::unsupported},
                               [&] { return parse_npy_header(head, file_size); });
  if (!header) return;
  const std::uint64_t extent = header->layout.extent_bytes();
  require(header->file_size == file_size, "the size of the file is kept");
  require(header->data_offset <= head.size(), "the data begins after what was parsed");
  require(header->data_offset <= file_size && extent <= file_size - header->data_offset,
          "the data lies inside the file");
  require(extent == header->layout.nbytes(), "the elements lie dense");
}

}  // namespace
}  // namespace onecopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onecopy;
  const ByteSpan input = fuzz::span_of(data, size);
  if (size < 2) return 0;
  const ByteSpan head = input.subspan(2);
  const std::uint64_t after = load<std::uint16_t>(input.data());
  fuzz::check_header(head, head.size() + after);
  fuzz::check_header(head, ~std::uint64_t{0});
  fuzz::check_header(head, head.size() / 2);
  return 0;
}
