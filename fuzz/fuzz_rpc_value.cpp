// SPDX-License-Identifier: Apache-2.0
// Plain values of calls: whatever the bytes say, reading refuses them or yields a value that can be written again and is
// the same then. The first byte is the number of tensors beside the bytes.
#include <vector>

#include "fuzz_input.h"
#include "onecopy/share/share.h"
#include "rpc/value_codec.h"

namespace onecopy::fuzz {
namespace {

using rpc::Value;

Message written(const Value& value) {
  Message message;
  rpc::encode_value(value, message);
  return message;
}

void check(ByteSpan data, std::span<const Tensor> tensors) {
  const auto value = accepted({ErrorCode::bad_handle, ErrorCode::unsupported, ErrorCode::out_of_memory},
                              [&] { return rpc::decode_value(data, tensors); });
  if (!value) return;
  const Message once = written(*value);
  const Message twice = written(rpc::decode_value(once.data, once.tensors));
  require(once.data == twice.data && once.tensors.size() == twice.tensors.size(),
          "a value survives being written and read");
}

}  // namespace
}  // namespace onecopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onecopy;
  static const std::vector<Tensor> tensors(3, empty(Layout(DType::f32, {2})));
  if (size == 0 || size > 4096) return 0;
  const ByteSpan input = fuzz::span_of(data, size);
  fuzz::check(input.subspan(1), std::span(tensors).first(data[0] % 4));
  return 0;
}
