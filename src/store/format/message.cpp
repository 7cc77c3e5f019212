// SPDX-License-Identifier: Apache-2.0
#include "store/format/message.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace onecopy::store {

Type type_of(ByteSpan packet) {
  Decoder decoder(packet, ErrorCode::protocol, "a message of the store");
  std::uint32_t version = 0;
  Type type{};
  decoder(version, type);
  if (version != kProtocolVersion)
    throw Error(ErrorCode::version_mismatch,
                fmt::format("the other side speaks version {} of the store's protocol and this one version "
                            "{}; use the same version of onecopy everywhere. `onecopy store stop` of the "
                            "version that started the keeper ends it, `onecopy store stop --force` that of "
                            "any version",
                            version, kProtocolVersion));
  if (type < Type::hello || type > kLastType)
    decoder.refuse(fmt::format("has the unknown type {}", static_cast<std::uint32_t>(type)));
  return type;
}

void send_in_packets(ByteSpan message, std::span<const int> fds,
                     const std::function<void(ByteSpan, std::span<const int>)>& send) {
  for (; fds.size() > UnixSocket::kMaxPacketFds; fds = fds.subspan(UnixSocket::kMaxPacketFds))
    send(pack(Files{}), fds.first(UnixSocket::kMaxPacketFds));
  send(message, fds);
}

std::optional<Packet> PacketJoiner::add(Packet packet) {
  const bool is_last = packet.bytes != pack(Files{});
  is_cut_ |= packet.is_cut;
  if (is_last && fds_.empty() && !is_cut_) return packet;
  if (fds_.size() + packet.fds.size() > kMaxFiles)
    throw Error(ErrorCode::protocol,
                fmt::format("a message of the store has more than {} descriptors", kMaxFiles));
  std::move(packet.fds.begin(), packet.fds.end(), std::back_inserter(fds_));
  if (!is_last) return std::nullopt;
  packet.fds = std::exchange(fds_, {});
  packet.is_cut = std::exchange(is_cut_, false);
  return packet;
}

Bytes refuse(const Error& error) {
  return pack(Refused{static_cast<std::uint8_t>(error.code()), error.what()});
}

}  // namespace onecopy::store
