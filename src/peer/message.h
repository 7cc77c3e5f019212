// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "core/fields.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"

/// The parts that all protocols between two processes of one host have in common: the head of a message, the first
/// types, and the refusal. A message is one packet of a UnixSocket: head, fields. The brokers of the share layer and the
/// keeper of the store speak such protocols.
namespace onecopy::peer {

/// A protocol: the number of its version, and what errors say of it.
struct Protocol {
  std::uint32_t version;
  const char* name;      ///< e.g. "the store's protocol"
  const char* message;   ///< e.g. "a message of the store"
  const char* advice;    ///< what to do about a process that speaks another version
  const char* listener;  ///< the role of the side that is asked, in proofs
  const char* caller;    ///< the role of the other side
  const char* impostor;  ///< the error for a listener that does not know the secret
  const char* stranger;  ///< the error for a caller that does not know the secret
};

/// The types with which the types of every protocol begin.
enum class First : std::uint32_t {
  hello = 1,  ///< caller: greets the listener
  challenge,  ///< listener: proves that it knows the secret, and asks for a proof
  prove,      ///< caller: sends its proof
  welcome,    ///< listener: lets the caller ask questions, with fields of each protocol's own
  refused,    ///< listener: sends an error in place of an answer
};

struct Head {
  std::uint32_t version = 0;
  std::uint32_t type = 0;
  /// An answer has the number of its question; 0 in a message that is not an answer, and if questions have no numbers.
  std::uint32_t serial = 0;
  void fields(auto& f) { f(version, type, serial); }
};

struct Refused {
  static constexpr First kType = First::refused;
  ErrorCode code{};
  std::string text;
  void fields(auto& f) { f(code, text); }
};

/// A message without fields.
template <auto type>
struct EmptyMessage {
  static constexpr auto kType = type;
  void fields(auto& f) { f(); }
};

template <class Message>
Bytes pack(const Protocol& protocol, const Message& message) {
  FieldWriter writer;
  writer(Head{protocol.version, static_cast<std::uint32_t>(Message::kType)}, message);
  return writer.take();
}
Bytes refuse(const Protocol& protocol, const Error& error);

/// Returns the type of a packet. Throws protocol, version_mismatch.
std::uint32_t type_of(const Protocol& protocol, ByteSpan packet);
/// Returns the serial number of a packet. REQUIRES: type_of() did not throw.
std::uint32_t serial_of(ByteSpan packet) noexcept;
void set_serial(Bytes& packet, std::uint32_t serial) noexcept;

/// Returns a reader of the fields of a packet of this type. Throws the Error that a `refused` contains, and protocol for
/// another type.
FieldReader fields_of(const Protocol& protocol, ByteSpan packet, std::uint32_t type);

/// Decodes a packet. Throws what fields_of() throws, and protocol for invalid fields.
template <class Message>
Message unpack(const Protocol& protocol, ByteSpan packet) {
  FieldReader reader = fields_of(protocol, packet, static_cast<std::uint32_t>(Message::kType));
  Message message;
  reader(message);
  reader.end();
  return message;
}

}  // namespace onecopy::peer
