// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "os/deadline.h"
#include "os/event.h"
#include "os/mutex.h"
#include "os/stream_socket.h"
#include "os/unshared_descriptor.h"
#include "rpc/far/frame.h"
#include "rpc/far/parcel.h"

namespace onecopy::rpc {

/// The frames that this process sends over one connection. The thread that puts a message sends it, as far as the socket
/// takes it at once; the far thread sends the rest. See docs/design/decisions/0010-far-links-copy-and-wait.md.
///
/// Thread safety: all members may be called concurrently.
/// Invariant: a thread that has released `sending_` has found nothing to send, or has told the far thread.
class FrameSender {
 public:
  /// Bytes of messages that are copied here at most until the connection takes them.
  static constexpr std::uint64_t kMostWaiting = 16 << 20;

  FrameSender(int fd, const Digest& key) : fd_(fd), seal_(key) {}

  void put_hello(Bytes&& hello);
  /// The place of the message's last byte in this direction. Throws invalid_argument for a message that cannot cross.
  std::uint64_t put(Message&& message);
  bool has_sent(std::uint64_t end) const noexcept { return sent_.load() >= end; }
  /// Waits until the connection has taken all bytes up to `end` but kMostWaiting, or until give_up(). False after `until`.
  bool wait_for_room(std::uint64_t end, Deadline until);
  /// The message that ends there is not sent, or not to its end, and its tensors may be written. False when all of it is
  /// with the connection by now. send() must follow.
  bool withdraw(std::uint64_t end);
  /// Copies the bytes of the message's tensors that have not been sent. send() must follow.
  void keep(std::uint64_t end);
  /// The connection is over, and no thread waits for room any more.
  void give_up() noexcept;
  /// Threads in wait_for_room().
  int waiters() const noexcept { return waiters_.load(); }
  /// Sends what the socket takes now. True when more is left. False, too, while another thread sends: it looks for more
  /// before and after it lets others. Throws peer_died. `is_due`: a heartbeat, if there is nothing else.
  bool send(bool is_due = false);
  bool is_empty() const noexcept { return waiting_.load() == 0; }

 private:
  struct Frame {
    FrameHead head;
    ByteSpan payload;
    ShortMac mac;
    std::size_t sent = 0;
    std::size_t size() const noexcept { return sizeof head + payload.size() + sizeof mac; }
  };
  struct Item {
    Bytes hello;
    std::optional<Parcel> parcel;  ///< none in a hello, and in a message that was withdrawn before it began
    std::uint64_t end = 0;         ///< see put()
  };

  std::uint64_t push(Item&& item, std::uint64_t bytes);
  bool has_room(std::uint64_t end) const noexcept;
  void tell_waiters() noexcept;
  bool send_some(bool is_due) REQUIRES(sending_);
  bool next_frame(bool is_due) REQUIRES(sending_);
  void make_frame(FrameKind kind, ByteSpan payload) REQUIRES(sending_);
  bool send_frame() REQUIRES(sending_);

  const int fd_;
  Mutex items_mutex_;
  std::deque<Item> items_ GUARDED_BY(items_mutex_);
  std::uint64_t put_ GUARDED_BY(items_mutex_) = 0;  ///< bytes of all messages
  std::atomic<std::uint64_t> sent_{0};              ///< of those
  Mutex room_mutex_;
  Condition has_changed_;  ///< sent_, or is_over_
  std::atomic<int> waiters_{0};
  std::atomic<bool> is_over_{false};
  std::atomic<std::size_t> waiting_{0};  ///< items that are not sent to the end
  Mutex sending_;
  FrameSeal seal_ GUARDED_BY(sending_);
  std::optional<Item> item_ GUARDED_BY(sending_);
  std::optional<Frame> frame_ GUARDED_BY(sending_);
};

/// The frames that come over one connection.
/// Thread safety: none of its own: the far thread's.
class FrameReceiver {
 public:
  struct Handlers {
    std::function<void(ByteSpan)> hello;
    std::function<void(Message&&)> message;
  };
  /// `has_hello`: the other end has been connected to, and is known.
  FrameReceiver(int fd, const Digest& key, bool has_hello, std::uint64_t most_bytes = kMostMessageBytes)
      : fd_(fd), seal_(key), assembly_(most_bytes), has_hello_(has_hello) {}

  /// Reads frames, a few at most. Throws peer_died at the end of the connection, protocol for a frame
  /// that does not check.
  void receive(const Handlers& handlers);

 private:
  bool fill();
  void begin_frame();
  void end_frame(const Handlers& handlers);
  std::size_t frame_bytes() const noexcept { return sizeof head_ + payload_.size() + sizeof mac_; }

  const int fd_;
  FrameSeal seal_;
  Assembly assembly_;
  FrameHead head_;
  std::span<std::byte> payload_;
  ShortMac mac_{};
  Bytes buffer_;
  std::size_t got_ = 0;
  bool has_head_ = false;
  bool has_hello_;
};

/// One connection to a member on another host, on which both sides have proved that they know the group's key.
///
/// Thread safety: all members may be called concurrently, but for receive(), the far thread's.
/// Invariant: a closed link delivers nothing more.
class FarLink {
 public:
  enum class Side : std::uint8_t { client, listener };
  /// `wake` is the far thread's.
  FarLink(StreamSocket socket, const FrameKeys& keys, Side side, std::shared_ptr<Event> wake);

  /// The tensors may be written as soon as it returns. Waits for room (see FrameSender), so the far thread must not call
  /// it. Throws timeout after `until`, and the message is withdrawn then; invalid_argument, and what copying from a card
  /// throws. The end of a link is no error here.
  void put(const Message& message, Stream stream, Deadline until = kForever);
  void put_hello(Bytes&& hello);
  /// After the frames that wait already.
  void close() noexcept;
  bool is_closed() const noexcept { return is_closed_.load(); }
  bool has_sent_all() const noexcept { return sender_.is_empty(); }
  /// All that was sent is in the other host: the end of a connection may drop what only its socket has taken.
  bool has_arrived() const noexcept;
  int waiters() const noexcept { return sender_.waiters(); }
  /// How long the other has said nothing. Members say something each second.
  std::chrono::seconds silence() const noexcept;
  int fd() const noexcept { return socket_.fd(); }

  // For the far thread.
  bool send(bool is_due) { return sender_.send(is_due); }
  void receive(const FrameReceiver::Handlers& handlers);
  /// The connection ends for the other side, too, although a member may still have the link.
  void end() noexcept;

 private:
  void send_or_leave() noexcept;

  StreamSocket socket_;
  const UnsharedDescriptor unshared_{socket_.fd()};  ///< a child of this process is not this member
  FrameSender sender_;
  FrameReceiver receiver_;
  const std::shared_ptr<Event> wake_;  ///< the links', and the far thread's
  std::atomic<bool> is_closed_{false};
  std::atomic<std::int64_t> heard_ns_;
};

/// The far thread has it, and the member that it leads to.
using FarLinkRef = std::shared_ptr<FarLink>;

}  // namespace onecopy::rpc
