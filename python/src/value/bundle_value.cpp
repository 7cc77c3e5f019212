// SPDX-License-Identifier: Apache-2.0
#include "value/bundle_value.h"

#include "onecopy/core/error.h"

namespace onecopy::python {
namespace {

constexpr std::uint32_t kMagic = 0x31765079;  // "yPv1"
constexpr std::size_t kHeader = 8;

}  // namespace

Bytes BundleValue::encode() const {
  Bytes bytes(kHeader + again.size() * sizeof(std::uint32_t));
  write_value(bytes.data(), kMagic);
  write_value(bytes.data() + 4, tensors);
  std::byte* at = bytes.data() + kHeader;
  for (const std::uint32_t row : again) {
    write_value(at, row);
    at += sizeof row;
  }
  bytes.insert(bytes.end(), value.begin(), value.end());
  return bytes;
}

BundleValue BundleValue::decode(ByteSpan structure, std::size_t rows) {
  BundleValue found;
  if (structure.size() < kHeader || load<std::uint32_t>(structure.data()) != kMagic) return found;
  found.tensors = load<std::uint32_t>(structure.data() + 4);
  const ByteSpan rest = structure.subspan(kHeader);
  const std::size_t further = rows - found.tensors;
  if (found.tensors > rows || rest.size() / sizeof(std::uint32_t) < further)
    throw Error(ErrorCode::bad_handle, "the bundle's value contradicts its table");
  for (std::size_t i = 0; i < further; ++i) {
    found.again.push_back(load<std::uint32_t>(rest.data() + i * sizeof(std::uint32_t)));
    if (found.again.back() >= found.tensors)
      throw Error(ErrorCode::bad_handle, "the bundle's value names a tensor that is not in its table");
  }
  const ByteSpan value = rest.subspan(further * sizeof(std::uint32_t));
  found.value.assign(value.begin(), value.end());
  return found;
}

}  // namespace onecopy::python
