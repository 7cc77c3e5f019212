// SPDX-License-Identifier: Apache-2.0
#include "share/format/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "os/random.h"

namespace onecopy::wire {

Type type_of(ByteSpan packet) {
  require_size(packet, sizeof(Head));
  const Head head = load<Head>(packet.data());
  if (head.version != kVersion)
    throw Error(ErrorCode::version_mismatch,
                fmt::format("the other process speaks version {} of onecopy's protocol, this one {}; "
                            "use the same release in both",
                            head.version, kVersion));
  return head.type;
}

bool is_answered(Type type) noexcept {
  switch (type) {
    case Type::acknowledge:
    case Type::adopt_child:
    case Type::child_hello:
    case Type::leave_channel:
    case Type::withdraw:
    case Type::let_go: return false;
    default: return true;
  }
}

std::uint32_t serial_of(ByteSpan packet) noexcept { return load<Head>(packet.data()).serial; }

void set_serial(Bytes& packet, std::uint32_t serial) noexcept {
  store(packet.data() + offsetof(Head, serial), serial);
}

void require_size(ByteSpan packet, std::size_t size) {
  if (packet.size() < size)
    throw Error(ErrorCode::protocol,
                fmt::format("a message of {} bytes where at least {} belong", packet.size(), size));
}

void expect(ByteSpan packet, Type expected) {
  const Type type = type_of(packet);
  if (type == expected) return;
  if (type == Type::refused) {
    const ByteSpan text = tail_of<Refused>(packet);
    const ErrorCode code = body_of<Refused>(packet).code;
    if (std::string_view(name(code)) == "unknown")
      throw Error(ErrorCode::protocol, "a refusal with an error code that does not exist");
    throw Error(code, std::string(reinterpret_cast<const char*>(text.data()), text.size()));
  }
  throw Error(ErrorCode::protocol,
              fmt::format("a message of type {} where {} was expected", static_cast<std::uint32_t>(type),
                          static_cast<std::uint32_t>(expected)));
}

Bytes refuse(const Error& error) {
  const std::string_view text = error.what();
  return pack(Type::refused, Refused{error.code()}, std::as_bytes(std::span(text)));
}

std::vector<int> descriptors(const ExportedMemory& memory, const Fd& table) {
  std::vector<int> numbers;
  if (table) numbers.push_back(table.get());
  for (const Fd& fd : memory.fds) numbers.push_back(fd.get());
  return numbers;
}

Name to_name(const std::string& public_name) {
  Name name{};
  std::copy_n(public_name.begin(), std::min(public_name.size(), name.size()), name.begin());
  return name;
}

std::string to_string(const Name& name) { return {name.data(), name.size()}; }

Nonce new_nonce() {
  Nonce nonce;
  random_bytes(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

Digest prove(ByteSpan id, std::string_view role, const Nonce& mine, const Nonce& theirs) {
  Bytes message;
  const auto append = [&](ByteSpan part) { message.insert(message.end(), part.begin(), part.end()); };
  append(std::as_bytes(std::span(role)));
  append(std::as_bytes(std::span(mine)));
  append(std::as_bytes(std::span(theirs)));
  return hmac_sha256(id, message);
}

}  // namespace onecopy::wire
