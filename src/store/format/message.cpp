// SPDX-License-Identifier: Apache-2.0
#include "store/format/message.h"

#include <iterator>
#include <utility>

#include "core/throw_error.h"

namespace onecopy::store {

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
    throw_error(ErrorCode::protocol, "a message of the store has more than {} descriptors", kMaxFiles);
  std::move(packet.fds.begin(), packet.fds.end(), std::back_inserter(fds_));
  if (!is_last) return std::nullopt;
  packet.fds = std::exchange(fds_, {});
  packet.is_cut = std::exchange(is_cut_, false);
  return packet;
}

}  // namespace onecopy::store
