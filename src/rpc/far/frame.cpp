// SPDX-License-Identifier: Apache-2.0
#include "rpc/far/frame.h"

#include <fmt/format.h>

#include "onecopy/core/error.h"

namespace onecopy::rpc {
namespace {

template <class T>
ByteSpan bytes_of(const T& value) noexcept {
  return std::as_bytes(std::span(&value, 1));
}

ByteSpan text(std::string_view what) noexcept { return std::as_bytes(std::span(what)); }

}  // namespace

void refuse_frame(std::string_view problem) {
  throw Error(ErrorCode::protocol, fmt::format("a frame from another host {}", problem));
}

FrameHead FrameSeal::head(FrameKind kind, std::size_t bytes) noexcept {
  FrameHead head;
  head.bytes = static_cast<std::uint32_t>(bytes);
  head.kind = kind;
  head.sequence = ++last_;
  return head;
}

/// A key of its own for each frame, as Poly1305 wants it.
ShortMac FrameSeal::mac(const FrameHead& head, ByteSpan payload) const noexcept {
  return poly1305(hmac_sha256(bytes_of(key_), bytes_of(head.sequence)), {bytes_of(head), payload});
}

void FrameSeal::expect(const FrameHead& head) const {
  if (head.sequence != last_ + 1) refuse_frame("is not the next one: it was replayed, or one is missing");
  if (head.kind < FrameKind::hello || head.kind > FrameKind::withdrawn) refuse_frame("is of no known kind");
  if (head.bytes > kMostFrameBytes) refuse_frame("is too long");
}

void FrameSeal::check(const FrameHead& head, ByteSpan payload, const ShortMac& given) {
  const ShortMac right = mac(head, payload);
  if (!equal_in_constant_time(bytes_of(right), bytes_of(given)))
    refuse_frame("was altered on its way, or its sender does not know the key");
  ++last_;
}

FrameKeys FrameKeys::of_session(const Digest& session) {
  return {hmac_sha256(bytes_of(session), text("from client")),
          hmac_sha256(bytes_of(session), text("from listener"))};
}

}  // namespace onecopy::rpc
