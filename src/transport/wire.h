// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "onecopy/channel/queue.h"
#include "onecopy/core/bytes.h"

/// The functions that prepare, write and read messages for all carriers between hosts.
namespace onecopy::transport {

inline constexpr std::size_t kMaxTensors = 1024;
inline constexpr std::uint64_t kMaxDataBytes = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{1} << 40;
/// The bit of a message's tag that makes the message arrive after all messages that were sent before it.
inline constexpr std::uint32_t kInOrder = 0x1'0000;
/// The max bytes of a small message, which is sent before the large messages that wait.
inline constexpr std::size_t kMaxSmallBytes = 32 << 10;

/// A tensor as its message's beginning describes it.
struct Row {
  Layout layout;
  int card = -1;  ///< the receiver's card for bytes that are sent from memory of a card; -1 for the host
};

/// The values that a message begins with.
struct Beginning {
  std::uint32_t tag = 0;
  std::uint64_t data_bytes = 0;
  std::vector<Row> rows;
  std::uint64_t bytes = 0;  ///< of the data and all tensors
};

/// Throws protocol.
[[noreturn]] void refuse_frame(std::string_view problem);

void append_bytes(Bytes& out, ByteSpan bytes);
/// Removes `bytes` bytes from the front and returns them. Throws protocol if there are fewer.
ByteSpan cut_bytes(ByteSpan& rest, std::size_t bytes);
/// Returns the bytes that a message begins with: its head and the layouts of its tensors.
Bytes encode_beginning(const Message& message);
/// Removes these bytes from the front. Throws protocol for bytes that no member writes and for a message that is too large.
Beginning cut_beginning(ByteSpan& rest, std::uint64_t max_bytes = kMaxMessageBytes);

/// Returns the message as it is sent: with copies on the CPU in place of tensors of devices. Tensors of CUDA devices for which
/// `stays` returns true are not copied. Waits for the work that the stream contains now. Throws invalid_argument for a
/// message with too many tensors, or too many plain bytes.
Message outgoing(Message message, Stream stream, bool (*stays)(const Tensor&) = nullptr);
/// Throws timeout.
[[noreturn]] void throw_no_room();

}  // namespace onecopy::transport
