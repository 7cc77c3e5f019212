// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "onecopy/device/stream.h"
#include "os/deadline.h"
#include "os/mutex.h"
#include "transport/send_window.h"
#include "transport/tls/parcel.h"
#include "transport/tls/tls_stream.h"

namespace onecopy::transport {

/// The messages that this process sends over one connection, until the connection has taken them. A message's bytes are
/// copied into records as the connection has room for them, so its tensors may be written while they are sent.
///
/// There are two queues, each in the order of the puts. Small messages go first, also between the frames of a large
/// one. A message in order goes first only if no large message waits, because it must arrive after all that were put
/// before it.
///
/// Thread safety: all members may be called concurrently, except the functions marked for the thread that has the stream.
class Outbox {
 public:
  /// The position of a message's last byte in its queue.
  struct Position {
    bool is_small = false;
    std::uint64_t end = 0;
  };

  /// Puts a frame of kind hello or fabric.
  void put_frame(FrameKind kind, Bytes&& bytes);
  /// Queues a message and returns its position. Throws invalid_argument for a message that cannot be sent.
  Position put(Message&& message);
  bool has_sent(Position position) const noexcept { return queue(position).sent.load() >= position.end; }
  /// Returns whether no message or frame waits.
  bool is_empty() const noexcept { return waiting_.load() == 0; }
  /// Returns whether the message is small and less than a record of small messages waits up to its end.
  bool fits_one_record(Position position) const noexcept {
    return position.is_small && position.end - small_.sent.load() < TlsStream::kMaxRecordBytes;
  }
  /// Waits until at most SendWindow::kMaxBytes up to the position wait for the connection, or until give_up(). Returns false
  /// after `until`.
  bool wait_for_room(Position position, Deadline until) {
    return window_.wait([&] { return has_room(position); }, until);
  }
  /// Returns the threads in wait_for_room(), which must be told of a record that was sent.
  SendWindow& window() noexcept { return window_; }
  /// Notes that the connection is over, and wakes all threads that wait for room.
  void give_up() noexcept;

  // For the thread that has the stream.
  /// Returns the next record, which is valid until the next call; empty if nothing waits.
  ByteSpan next_record(bool is_beat);
  /// Drops the message at that position, or the rest of it. Returns false if the connection has taken all of it.
  bool withdraw(Position position);
  /// Copies some of the bytes of the message's tensors that the connection has not taken. Returns whether it must be
  /// called again: other threads use the stream meanwhile.
  bool keep(Position position);

 private:
  struct Item {
    FrameKind kind = FrameKind::message;
    Bytes frame;                   ///< the bytes of a frame of `kind`
    std::optional<Parcel> parcel;  ///< the message, if kind is message
    std::uint64_t end = 0;         ///< the position of its last byte in the queue
  };
  struct Queue {
    std::deque<Item> items;
    std::uint64_t put = 0;               ///< bytes of all items ever put
    std::atomic<std::uint64_t> sent{0};  ///< bytes of them that the connection has taken
    /// The item that is being sent; only the thread that has the stream uses it.
    std::optional<Item> item;
  };

  const Queue& queue(Position position) const noexcept { return position.is_small ? small_ : large_; }
  void push(Queue& queue, Item&& item) REQUIRES(mutex_);
  bool has_room(Position position) const noexcept;
  bool next_item(Queue& queue);
  bool append_frame();
  bool append_frame_of(Queue& queue);
  void append(FrameKind kind, ByteSpan bytes);
  Item* find(Position position) REQUIRES(mutex_);

  Mutex mutex_;  ///< guards the queues' items and `put`
  Queue small_, large_;
  std::atomic<std::size_t> waiting_{0};  ///< items that have not been taken entirely
  /// The items that wait in the queue of large messages.
  std::atomic<std::size_t> large_waiting_{0};
  SendWindow window_;  ///< changes with `sent` and is_over_
  std::atomic<bool> is_over_{false};

  // Only the thread that has the stream uses the following members.
  Bytes frame_;
  Queue* sending_ = nullptr;  ///< the queue of the last frame
  ByteSpan rest_;             ///< the bytes of the last frame that are in no record yet
  std::array<std::byte, TlsStream::kMaxRecordBytes> record_;
  std::size_t record_bytes_ = 0;
};

/// The messages that come over one connection. Large frames are read into the memory of their message. Small frames go
/// through a buffer: a single read takes several of them. Thread safety: none; only the thread that has the stream uses
/// it.
class Inbox {
 public:
  /// The messages that have arrived, in order.
  struct Arrived {
    std::optional<Bytes> hello, fabric;
    std::vector<Message> messages;
    std::exception_ptr end;  ///< the reason why no further message arrives
  };
  /// Makes an inbox. `has_hello`: the other side is known, because this process has connected to it.
  explicit Inbox(bool has_hello, std::uint64_t max_bytes = kMaxMessageBytes)
      : assembly_(max_bytes), whole_(max_bytes), has_hello_(has_hello) {}

  /// Returns the memory for the next bytes.
  std::span<std::byte> room() noexcept;
  /// Takes bytes that were written into room(). Throws protocol.
  void take(std::size_t bytes, Arrived& arrived);

 private:
  std::span<std::byte> left() noexcept;
  void advance(std::size_t bytes, Arrived& arrived);
  void begin_frame();
  void end_frame(Arrived& arrived);
  static void take_message(Assembly& assembly, Arrived& arrived);

  Assembly assembly_, whole_;
  FrameHead head_;
  std::span<std::byte> payload_;
  Bytes buffer_;
  std::array<std::byte, 1024> small_;
  std::size_t got_ = 0;
  bool has_head_ = false, is_in_place_ = false;
  bool has_hello_;
};

/// A connection to a member on another host, on which both sides have proved that they know the group's key. The thread that
/// puts a message sends as much as the socket takes at once. The event loop's thread sends the rest, and receives. Small
/// messages that follow each other closely are left to the loop until they fill a record, because a record and a system call
/// for each message would take most of the time.
///
/// Thread safety: all members may be called concurrently.
/// Invariants: one thread at a time has the stream. When a thread gives it up, nothing is left to send or the loop will
/// look again. A closed link delivers no further message.
class TlsLink {
 public:
  /// Makes a link. `rearm` asks the event loop to call on_ready() soon, because another thread has left messages to
  /// it.
  TlsLink(std::unique_ptr<TlsStream> stream, Side side, std::chrono::milliseconds peer_timeout,
          std::function<void(int fd)> rearm);

  /// Sends a message. The caller may write its tensors as soon as put() returns. Waits for room (see Outbox), so the
  /// loop's thread must not call it. Throws timeout after `until`, after which the message is withdrawn,
  /// invalid_argument, and what copying from a card throws. Does nothing on a link that has ended.
  void put(Message message, Stream stream, Deadline until = kForever);
  /// Puts a frame of kind hello or fabric.
  void put_frame(FrameKind kind, Bytes&& bytes);

  /// Receives and sends for a while, and returns what has arrived. The event loop's thread calls it.
  Inbox::Arrived on_ready() noexcept;
  /// Sends a heartbeat, so that the other side knows that this process is alive.
  void beat() noexcept;

  /// Ends the connection at the loop's next turn.
  void close() noexcept;
  bool is_closed() const noexcept { return is_closed_.load(); }
  /// Ends the connection for both sides now.
  void end() noexcept;
  /// Returns whether the other host has received all that was sent. Closing the connection may drop what only the
  /// socket has taken.
  bool has_arrived() const noexcept;
  bool has_sent_all() const noexcept { return outbox_.is_empty() && !has_unsent_.load(); }
  int waiters() noexcept { return outbox_.window().waiters(); }
  /// Returns for how long the other host has acknowledged nothing, although it should have; 0 if all is acknowledged.
  std::chrono::milliseconds unanswered() const noexcept;
  /// Returns for how long the other side has sent nothing. Members send something each second.
  std::chrono::seconds silence() const noexcept;
  int fd() const noexcept { return fd_; }

 private:
  enum class Progress : std::uint8_t { done, blocked, interrupted };

  bool is_in_burst() noexcept;
  void leave_to_loop() noexcept;
  void pump() noexcept;
  Progress send_some(bool is_beat) noexcept REQUIRES(streaming_);
  Progress send_records(bool is_beat) REQUIRES(streaming_);
  void receive(Inbox::Arrived& arrived) REQUIRES(streaming_);
  void rearm() const noexcept;

  Mutex streaming_;  ///< held by the thread that has the stream
  const std::unique_ptr<TlsStream> stream_ PT_GUARDED_BY(streaming_);
  Inbox inbox_ GUARDED_BY(streaming_);
  Outbox outbox_;
  const int fd_;
  const std::function<void(int)> rearm_;
  std::atomic<bool> is_closed_{false}, has_unsent_{false};
  std::atomic<bool> is_left_to_loop_{false};  ///< the loop was asked for a turn and has not begun it
  std::atomic<std::int64_t> last_put_ns_{0};
  std::atomic<int> close_puts_{0};                 ///< successive puts, each soon after the one before
  bool is_broken_ GUARDED_BY(streaming_) = false;  ///< sending has failed
  std::atomic<std::int64_t> heard_ns_;
};

using TlsLinkRef = std::shared_ptr<TlsLink>;

}  // namespace onecopy::transport
