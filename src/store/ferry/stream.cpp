// SPDX-License-Identifier: Apache-2.0
#include "store/ferry/stream.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>

#include "onecopy/core/error.h"

namespace onecopy::store::ferry {

using transport::TlsStream;

namespace {

/// Gives each address the same part of the time that is left.
StreamSocket connect_to_one(const std::vector<HostPort>& addresses, Deadline deadline) {
  for (std::size_t tried = 0;; ++tried) {
    const auto left = static_cast<std::int64_t>(addresses.size() - tried);
    try {
      return StreamSocket::connect(addresses[tried], deadline.whole_ms_left(std::chrono::hours(1)) / left);
    } catch (const Error&) {
      if (left == 1) throw;
    }
  }
}

}  // namespace

Stream Stream::connect(const HostAddress& to, std::shared_ptr<const transport::TlsContext> context,
                       Deadline deadline) {
  StreamSocket socket = connect_to_one(to.resolve(), deadline);
  const int at_once = 1;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof at_once);
  auto stream = std::make_unique<TlsStream>(std::move(context), std::move(socket), transport::Side::client);
  stream->handshake(deadline);
  return Stream(std::move(stream));
}

void Stream::flush(std::chrono::milliseconds patience) {
  while (!stream_->flush())
    if (!Deadline::after(patience).wait_for(stream_->fd(), POLLOUT))
      throw Error(ErrorCode::timeout,
                  fmt::format("the other host took nothing for {} ms", patience.count()));
}

std::uint32_t Stream::send(ByteSpan bytes, std::chrono::milliseconds patience, std::uint32_t before) {
  std::uint32_t crc = before;
  while (!bytes.empty()) {
    if (!stream_->has_room()) flush(patience);
    const ByteSpan record = bytes.first(std::min(bytes.size(), TlsStream::kMaxRecordBytes));
    crc = crc32c(record, crc);
    stream_->write(record);
    bytes = bytes.subspan(record.size());
  }
  flush(patience);
  return crc;
}

std::uint32_t Stream::receive(std::span<std::byte> into, std::chrono::milliseconds patience,
                              std::uint32_t before) {
  std::uint32_t crc = before;
  while (!into.empty()) {
    stream_->begin_turn();
    std::size_t got = 0;
    for (std::size_t part = 0; !into.empty() && (part = stream_->read(into)) != 0; got += part) {
      crc = crc32c(into.first(part), crc);
      into = into.subspan(part);
    }
    if (got == 0 && !Deadline::after(patience).wait_for(stream_->fd(), POLLIN))
      throw Error(ErrorCode::timeout,
                  fmt::format("the other host sent nothing for {} ms", patience.count()));
  }
  return crc;
}

void Stream::send_frame(ByteSpan content, std::chrono::milliseconds patience) {
  const auto size = static_cast<std::uint32_t>(content.size());
  Bytes frame(sizeof size);
  write_value(frame.data(), size);
  frame.insert(frame.end(), content.begin(), content.end());
  send(frame, patience);
}

Bytes Stream::receive_frame(std::chrono::milliseconds patience, std::uint64_t max_bytes) {
  std::uint32_t size = 0;
  receive(std::as_writable_bytes(std::span(&size, 1)), patience);
  if (size > max_bytes)
    throw Error(ErrorCode::protocol, fmt::format("another host sent a message of {} bytes", size));
  Bytes content(size);
  receive(content, patience);
  return content;
}

}  // namespace onecopy::store::ferry
