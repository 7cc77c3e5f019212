// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "onecopy/channel/queue.h"
#include "rpc/far/frame.h"

namespace onecopy {
class DeviceMemory;
}

/// Messages of rpc as the payloads of frames.
namespace onecopy::rpc {

inline constexpr std::uint64_t kMostMessageBytes = std::uint64_t{1} << 40;

/// A message on its way out, cut into payloads. Its tensors are of the CPU.
/// Thread safety: none of its own.
class Parcel {
 public:
  /// Deadlines cross as the time that is left. Throws invalid_argument for a message with too many tensors, or too
  /// many plain bytes.
  explicit Parcel(Message&& message);

  FrameKind kind() const noexcept {
    if (is_withdrawn_) return FrameKind::withdrawn;
    return is_begun_ ? FrameKind::more : FrameKind::message;
  }
  /// The next payload; valid until keep(), and as long as the parcel. Empty at the end.
  std::optional<ByteSpan> next();
  /// Of all payloads together.
  std::uint64_t bytes() const noexcept { return bytes_; }

  /// Copies the tensors' bytes from the last payload on. From here on the parcel has none of their memory.
  void keep();
  /// Drops the payloads that have not been given out: one more follows, which is empty. The last one is copied, and the
  /// parcel has none of the tensors' memory from here on.
  void withdraw();
  bool is_given_out() const noexcept { return given_ == bytes_; }
  /// The last payload, where it is since keep() or withdraw().
  ByteSpan last() const noexcept;

 private:
  Message message_;
  Bytes first_;
  std::vector<ByteSpan>
      parts_;  ///< the data, and then each tensor; none when all of it is in the first payload
  std::vector<std::unique_ptr<std::byte[]>> kept_;
  std::uint64_t bytes_ = 0, given_ = 0;
  bool is_begun_ = false, is_withdrawn_ = false, has_ended_ = false;
  std::size_t part_ = 0, at_ = 0;
  std::size_t last_bytes_ = 0;  ///< of the last payload, where it is of a part
};

/// A message on its way in. A process that sends does not decide where its bytes go before a frame is checked.
/// Thread safety: none of its own.
class Assembly {
 public:
  /// A message of more bytes is refused.
  explicit Assembly(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}

  /// The payload of a checked frame of kind message. Throws protocol.
  void begin(ByteSpan payload);
  /// Where the payload of the next frame of kind more goes. Throws protocol if the message has no room for it. The memory of
  /// a large tensor is reserved here, part by part: all of it at once takes a second a GiB, and a sender whose bytes are not
  /// taken for three seconds ends the connection.
  std::span<std::byte> room(std::size_t bytes);
  /// That room was filled, and the frame has been checked.
  void fill(std::size_t bytes) noexcept;
  /// Drops the message that has begun. Throws protocol if there is none.
  void withdraw();

  bool is_whole() const noexcept { return is_begun_ && left_ == 0; }
  /// The message; none if there was no memory for it, which is logged. REQUIRES: is_whole().
  std::optional<Message> take();

 private:
  std::span<std::byte> part(std::size_t i) noexcept;
  void skip_full_parts() noexcept;
  void allocate();
  struct Row {
    Layout layout;
    std::size_t bytes;
    DeviceMemory* memory = nullptr;  ///< the tensor's, where it is reserved as the bytes come
    std::size_t reserved = 0;
  };
  Tensor allocate(Row& row);
  void reserve(Row& row, std::size_t bytes);
  void lose(const char* why);

  const std::uint64_t most_bytes_;
  Message message_;
  std::vector<Row> rows_;
  Bytes scrap_;  ///< for a message without memory
  std::size_t data_bytes_ = 0;
  std::size_t left_ = 0;
  std::size_t part_ = 0, at_ = 0;
  bool is_begun_ = false, is_lost_ = false;
};

}  // namespace onecopy::rpc
