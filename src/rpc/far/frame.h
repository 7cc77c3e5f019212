// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "onecopy/core/bytes.h"
#include "os/hmac.h"
#include "os/poly1305.h"

/// The frames of a connection to a member on another host: a head, a payload, and a MAC of both.
/// docs/design/formats/rpc-frame-v1.md describes them byte by byte.
namespace onecopy::rpc {

enum class FrameKind : std::uint8_t {
  hello = 1,      ///< the first one each way: the address of its sender
  message = 2,    ///< a message begins
  more = 3,       ///< the next bytes of the message
  heartbeat = 4,  ///< empty
  withdrawn = 5,  ///< the message that has begun does not come to its end; empty
};

struct FrameHead {
  std::uint32_t bytes = 0;  ///< of the payload
  FrameKind kind = FrameKind::heartbeat;
  std::uint8_t reserved[3] = {};
  std::uint64_t sequence = 0;  ///< 1 for the first frame of a direction
};
static_assert(sizeof(FrameHead) == 16);

inline constexpr std::uint32_t kMostFrameBytes = 256 << 10;

/// Heads and MACs of the frames in one direction of one connection. A frame that is altered, left out, repeated, or of
/// another connection does not check.
///
/// Thread safety: none of its own.
class FrameSeal {
 public:
  explicit FrameSeal(const Digest& key) : key_(key) {}

  /// Of the next frame.
  FrameHead head(FrameKind kind, std::size_t bytes) noexcept;
  ShortMac mac(const FrameHead& head, ByteSpan payload) const noexcept;

  /// Is it the head of the next frame? Throws protocol. Nothing is proved before check().
  void expect(const FrameHead& head) const;
  /// Throws protocol.
  void check(const FrameHead& head, ByteSpan payload, const ShortMac& mac);

 private:
  Digest key_;
  std::uint64_t last_ = 0;
};

/// The keys of a connection, of the group's key and the nonces of both sides.
struct FrameKeys {
  Digest from_client, from_listener;

  static FrameKeys of_session(const Digest& session);
};

[[noreturn]] void refuse_frame(std::string_view problem);

}  // namespace onecopy::rpc
