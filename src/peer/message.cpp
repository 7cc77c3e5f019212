// SPDX-License-Identifier: Apache-2.0
#include "peer/message.h"

#include <fmt/format.h>

#include <cstddef>
#include <string_view>

#include "core/throw_error.h"

namespace onecopy::peer {
namespace {

constexpr std::size_t kHeadBytes = 3 * sizeof(std::uint32_t);
constexpr std::size_t kSerialAt = 2 * sizeof(std::uint32_t);

[[noreturn]] void throw_refusal(FieldReader& fields) {
  Refused refused;
  fields(refused);
  fields.end();
  if (std::string_view(name(refused.code)) == "unknown")
    fields.refuse("is a refusal with an error code that does not exist");
  throw Error(refused.code, refused.text);
}

}  // namespace

Bytes refuse(const Protocol& protocol, const Error& error) {
  return pack(protocol, Refused{error.code(), error.what()});
}

std::uint32_t type_of(const Protocol& protocol, ByteSpan packet) {
  Head head;
  FieldReader(packet, ErrorCode::protocol, protocol.message)(head);
  if (head.version != protocol.version)
    throw_error(ErrorCode::version_mismatch,
                "the other process speaks version {} of {} and this one version {}; {}", head.version,
                protocol.name, protocol.version, protocol.advice);
  return head.type;
}

std::uint32_t serial_of(ByteSpan packet) noexcept { return load<std::uint32_t>(packet.data() + kSerialAt); }

void set_serial(Bytes& packet, std::uint32_t serial) noexcept {
  write_value(packet.data() + kSerialAt, serial);
}

FieldReader fields_of(const Protocol& protocol, ByteSpan packet, std::uint32_t type) {
  const std::uint32_t is = type_of(protocol, packet);
  FieldReader fields(packet.subspan(kHeadBytes), ErrorCode::protocol, protocol.message);
  if (is == type) return fields;
  if (is == static_cast<std::uint32_t>(First::refused)) throw_refusal(fields);
  fields.refuse(fmt::format("has type {} where {} was expected", is, type));
}

}  // namespace onecopy::peer
