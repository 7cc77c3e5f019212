// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "onecopy/channel/queue.h"
#include "transport/arriving_tensor.h"
#include "transport/wire.h"

/// The messages of rpc as frames of a TLS connection, described byte by byte in docs/design/formats/rpc-stream-v1.md.
namespace onecopy::transport {

inline constexpr std::uint32_t kMaxFrameBytes = 256 << 10;

enum class FrameKind : std::uint8_t {
  hello = 1,      ///< the first one of a client: the process that it wants, and its own address
  message = 2,    ///< a message begins
  more = 3,       ///< the next bytes of the message
  heartbeat = 4,  ///< empty
  withdrawn = 5,  ///< the rest of the message that has begun is not sent; empty
  whole = 6,      ///< a whole message, which may come between the frames of another one
  fabric = 7,     ///< the address of the sender's UCX worker
};

struct FrameHead {
  std::uint32_t bytes = 0;  ///< bytes that follow the head
  FrameKind kind = FrameKind::heartbeat;
  std::uint8_t reserved[3] = {};
};
static_assert(sizeof(FrameHead) == 8);

/// Throws protocol for a head that no member writes.
void check_head(const FrameHead& head);

/// A message that is being sent, cut into frames. Its tensors are on the CPU.
/// Thread safety: none of its own.
class Parcel {
 public:
  /// Takes a message of outgoing(). Throws invalid_argument for shapes that take too many bytes.
  explicit Parcel(Message&& message);

  struct Part {
    FrameKind kind;
    ByteSpan bytes;  ///< kind message: valid as long as the parcel; other kinds: until keep() or withdraw()
  };
  /// Returns the next frame, or nothing at the end. All frames but the first have up to `max_bytes` bytes.
  std::optional<Part> next(std::size_t max_bytes);
  /// Returns whether the message is one frame, which holds a copy of its bytes.
  bool is_whole() const noexcept { return parts_.empty(); }
  /// Returns the number of bytes in all frames together.
  std::uint64_t bytes() const noexcept { return bytes_; }

  /// Copies up to `max_bytes` of the tensors' bytes that neither next() has returned nor keep() has copied. Returns true
  /// once all are copied: the tensors may then be written, and are released.
  bool keep(std::size_t max_bytes);
  /// Drops the bytes that next() has not returned. One more frame follows, of kind withdrawn.
  void withdraw();
  bool is_given_out() const noexcept { return given_ == bytes_; }

 private:
  Message message_;
  Bytes first_;
  /// The data, and then each tensor; empty if the first frame contains all of it.
  std::vector<ByteSpan> parts_;
  std::vector<std::unique_ptr<std::byte[]>> kept_;
  std::size_t borrowed_ = 0;  ///< the parts from this one on are copies
  std::uint64_t bytes_ = 0, given_ = 0;
  bool is_begun_ = false, is_withdrawn_ = false, has_ended_ = false;
  std::size_t part_ = 0, at_ = 0;
};

/// A message that is being received.
/// Thread safety: none of its own.
class Assembly {
 public:
  /// Sets the max bytes of a message; larger ones are refused.
  explicit Assembly(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

  /// Takes a frame of kind message. Throws protocol.
  void begin(ByteSpan payload);
  /// Returns the memory for the bytes of the next frame of kind more. Throws protocol if the message has no room for
  /// them.
  std::span<std::byte> room(std::size_t bytes);
  /// Notes that so many bytes of the room were filled.
  void fill(std::size_t bytes) noexcept;
  /// Drops the message that has begun. Throws protocol if there is none.
  void withdraw();

  bool is_whole() const noexcept { return is_begun_ && left_ == 0; }
  /// Returns the message, or nothing if there was no memory for it, which was logged. REQUIRES: is_whole().
  std::optional<Message> take();

 private:
  std::span<std::byte> part(std::size_t i) noexcept;
  void skip_full_parts() noexcept;
  void allocate(const Beginning& beginning);
  void lose(const char* why);

  const std::uint64_t max_bytes_;
  Message message_;
  std::vector<ArrivingTensor> tensors_;
  Bytes scrap_;  ///< takes the bytes of a message for which there is no memory
  std::size_t left_ = 0;
  std::size_t part_ = 0, at_ = 0;
  bool is_begun_ = false, is_lost_ = false;
};

}  // namespace onecopy::transport
