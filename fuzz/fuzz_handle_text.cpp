// SPDX-License-Identifier: Apache-2.0 Bytes have one text form, and a text has one meaning.
#include <algorithm>

#include "fuzz_input.h"
#include "onecopy/share/handle_fields.h"

namespace onecopy::fuzz {
namespace {

void check_text(std::string_view text) {
  const auto bytes = accepted({ErrorCode::bad_handle}, [&] { return from_text(text); });
  if (!bytes) return;
  require(bytes->size() <= kMaxHandleBytes, "no text stands for more bytes than a handle may have");
  require(text.find(to_text(*bytes)) != std::string_view::npos, "one handle has one text");
}

void check_bytes(ByteSpan input) {
  const ByteSpan bytes = input.first(std::min(input.size(), kMaxHandleBytes));
  const Bytes again = from_text("\n" + to_text(bytes) + " ");
  require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()), "text carries any bytes");
}

}  // namespace
}  // namespace onecopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onecopy::fuzz;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_text(text);
  check_text("onecopy:" + std::string(text));
  check_bytes(span_of(data, size));
  return 0;
}
