// SPDX-License-Identifier: Apache-2.0
#include "store/format/message.h"

#include <fmt/format.h>

namespace onecopy::store {

Type type_of(ByteSpan packet) {
  Decoder decoder(packet, ErrorCode::protocol, "a message of the store");
  std::uint32_t version = 0;
  Type type{};
  decoder(version, type);
  if (version != kProtocolVersion)
    throw Error(ErrorCode::version_mismatch,
                fmt::format("the other side speaks version {} of the store's protocol and this one version "
                            "{}; run `onecopy store stop` with the version that started the keeper, or use "
                            "the same version of onecopy everywhere",
                            version, kProtocolVersion));
  if (type < Type::hello || type > kLastType)
    decoder.refuse(fmt::format("has the unknown type {}", static_cast<std::uint32_t>(type)));
  return type;
}

Bytes refuse(const Error& error) {
  return pack(Refused{static_cast<std::uint8_t>(error.code()), error.what()});
}

}  // namespace onecopy::store
