// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onecopy/channel/queue.h"
#include "onecopy/core/bytes.h"
#include "onecopy/device/stream.h"
#include "os/deadline.h"

namespace onecopy {
class EventLoop;
}

namespace onecopy::transport {

/// A channel for messages between this process and another one over a fabric, in both directions. The two processes exchange
/// the addresses of their ends over a TlsLink, which also reports the end of the other process.
/// Thread safety: all members may be called concurrently.
/// Invariant: the functions are called by the event loop's thread, without locks, and not after close().
class FabricChannel {
 public:
  struct Handlers {
    std::function<void(Message&&)> deliver;
    /// Reports the first answer to ask().
    std::function<void()> opened;
    /// Reports, perhaps on a thread that sends, that the other process cannot be reached over the fabric.
    std::function<void()> failed;
  };

  FabricChannel& operator=(FabricChannel&&) = delete;
  virtual ~FabricChannel() = default;

  /// Returns the address that the other side passes to connect(). Messages may arrive after this call.
  virtual Bytes address() const = 0;
  /// Connects to the other side. Throws protocol, system.
  virtual void connect(ByteSpan address, Handlers handlers) = 0;
  /// Sends a message. Waits for room, so the loop's thread must not call it. Throws timeout, with nothing sent, if
  /// there is no room by the deadline, and invalid_argument for a message that cannot be sent. Does nothing on a closed
  /// channel.
  virtual void put(Message message, Stream stream, Deadline deadline) = 0;
  /// Returns whether tensors of cards are sent from the card's memory.
  virtual bool takes_cards() const noexcept = 0;
  /// Asks the other side to tell when it has received all messages that were sent before.
  virtual void ask() = 0;
  /// Returns whether the other side has answered ask(), or the channel is over.
  virtual bool has_arrived() const noexcept = 0;
  /// Delivers what has arrived so far. The loop's thread calls it.
  virtual void take_rest() noexcept = 0;
  /// Ends the channel for both sides, and wakes all threads that wait for room.
  virtual void close() noexcept = 0;
};

/// The state of a fabric in this process, through which all its channels send and receive.
/// Thread safety: all members may be called concurrently.
class Fabric {
 public:
  Fabric& operator=(Fabric&&) = delete;
  virtual ~Fabric() = default;

  virtual std::shared_ptr<FabricChannel> make_channel() = 0;
  /// Makes the loop look at the fabric soon.
  virtual void wake() noexcept = 0;
  /// Ends the fabric. REQUIRES: the loop has stopped, and the channels are closed.
  virtual void stop() noexcept = 0;
};

/// A fabric's library and what it finds on this machine.
struct FoundFabric {
  std::string path, version;
  std::vector<std::string> devices;  ///< with their transports, such as "tcp/eth0"
};

/// The way of large pieces of memory to and from one other process over a fabric, beside a TlsStream, over which the two processes
/// have proved the key and exchange the addresses of their ends.
///
/// Guarantees. Bytes arrive in the order in which they were sent, in memory that the receiver names. The network reads and writes no
/// memory of a function that has thrown. Nothing is encrypted or authenticated.
///
/// Thread safety: none. Functions that wait throw timeout once nothing was sent or received for `patience`, and peer_died. After an
/// error, the pipe must not be used.
class FabricPipe {
 public:
  static constexpr std::size_t kMaxPiece = std::size_t{1} << 20;

  FabricPipe& operator=(FabricPipe&&) = delete;
  virtual ~FabricPipe() = default;

  /// Returns the address that the other side passes to connect().
  virtual Bytes address() const = 0;
  /// Throws protocol, system.
  virtual void connect(ByteSpan address) = 0;
  /// Registers sealed memory with the network, for reading, until the next call with other memory. Empty memory: none. Throws system.
  /// REQUIRES: no piece is under way.
  virtual void read_from(ByteSpan memory) = 0;
  /// Begins to send a piece of up to kMaxPiece bytes, and returns its CRC-32C behind that of bytes `before`. REQUIRES: the piece stays
  /// as it is until flush() has returned or the pipe has ended.
  virtual std::uint32_t send(ByteSpan piece, std::chrono::milliseconds patience, std::uint32_t before) = 0;
  /// Waits until all pieces were sent.
  virtual void flush(std::chrono::milliseconds patience) = 0;
  /// Fills `into` with the next pieces, and returns their CRC-32C. Calls `filled` with the number of bytes that are there so far.
  /// Throws protocol, and what `filled` throws. REQUIRES: no piece goes beyond `into`.
  virtual std::uint32_t receive(std::span<std::byte> into, std::chrono::milliseconds patience,
                                const std::function<void(std::size_t)>& filled) = 0;
};

/// Returns the fabric that a setting chooses: empty for TLS, which is the default. Throws invalid_argument, which names the
/// setting, for another value than tls and ucx.
std::string fabric_by(const char* setting, const std::string& value);
/// Throws invalid_argument if no fabric has that name, and unsupported if its library is missing or this build has no
/// such fabric.
void require_fabric(std::string_view name);
/// Loads the fabric's library. Throws what require_fabric() throws, and system.
FoundFabric find_fabric(std::string_view name);
/// Makes the fabric of that name, which the channels keep. Throws what require_fabric() throws, and system.
std::shared_ptr<Fabric> make_fabric(std::string_view name, EventLoop& loop,
                                    std::chrono::milliseconds peer_timeout);
/// Makes a pipe over the fabric of that name. `beside`: the descriptor of the TlsStream, whose end ends all waiting. Throws as
/// make_fabric().
std::unique_ptr<FabricPipe> make_pipe(std::string_view name, int beside);

}  // namespace onecopy::transport
