// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

#include "onecopy/channel/queue.h"
#include "onecopy/core/bytes.h"

/// The parts of messages that all transports between hosts write in the same way.
namespace onecopy::rpc {

inline constexpr std::size_t kMaxTensors = 1024;
inline constexpr std::uint64_t kMaxDataBytes = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{1} << 40;

/// The beginning of a message. The layouts of its tensors follow.
struct ParcelHead {
  std::uint32_t tag = 0;
  std::uint32_t tensors = 0;
  std::uint64_t data_bytes = 0;
};
static_assert(sizeof(ParcelHead) == 16);

/// Throws protocol.
[[noreturn]] void refuse_frame(std::string_view problem);

void append_bytes(Bytes& out, ByteSpan bytes);
void append_layout(Bytes& out, const Layout& layout);
/// Removes `bytes` bytes from the front and returns them. Throws protocol if there are fewer.
ByteSpan cut_bytes(ByteSpan& rest, std::size_t bytes);
/// Throws protocol.
Layout cut_layout(ByteSpan& rest);
/// Removes a head from the front and returns it. Throws protocol if the message is too large.
ParcelHead cut_head(ByteSpan& rest, std::uint64_t max_bytes = kMaxMessageBytes);

/// Returns the message with copies on the CPU in place of tensors of devices. Waits for the work that the stream
/// contains now.
Message on_host(const Message& message, Stream stream);
/// Throws invalid_argument for a message with too many tensors, or too many plain bytes.
void check_can_cross(const Message& message);
/// Changes the deadline of a call from a point in time to the time that is left, because hosts have different clocks.
void to_time_left(Message& message);
/// Changes the deadline of a call back to a point in time.
void to_deadline(Message& message);

}  // namespace onecopy::rpc
