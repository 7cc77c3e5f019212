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
#include "rpc/transport/tls/parcel.h"
#include "rpc/transport/tls/tls_stream.h"

namespace onecopy::rpc {

/// The messages that this process sends over one connection, until the connection has taken them. A message's bytes are
/// copied into records as the connection has room for them, so its tensors may be written while they are sent.
///
/// There are two queues, each in the order of the puts. Small messages go first, also between the frames of a large one. A
/// message that is in order does so only if nothing large waits: it comes behind all that was put before it.
///
/// Thread safety: all members may be called concurrently, but for the ones that take the stream: the thread that has it.
class Outbox {
 public:
  /// Bytes of messages of one queue that are copied here at most until the connection takes them.
  static constexpr std::uint64_t kMaxWaiting = 16 << 20;

  /// The place of a message's last byte in its queue.
  struct Place {
    bool is_small = false;
    std::uint64_t end = 0;
  };

  /// Puts a frame of kind hello or fabric.
  void put_frame(FrameKind kind, Bytes&& bytes);
  /// Throws invalid_argument for a message that cannot cross.
  Place put(Message&& message, bool is_in_order);
  bool has_sent(Place place) const noexcept { return queue(place).sent.load() >= place.end; }
  /// Returns whether nothing waits.
  bool is_empty() const noexcept { return waiting_.load() == 0; }
  /// Returns whether the message is a small one, and less than a record waits.
  bool fits_one_record(Place place) const noexcept {
    return place.is_small && place.end - small_.sent.load() < TlsStream::kMaxRecordBytes;
  }
  /// Waits until the connection has taken all bytes up to the place but kMaxWaiting, or until give_up(). Returns false after
  /// `until`.
  bool wait_for_room(Place place, Deadline until);
  /// Returns the number of threads in wait_for_room().
  int waiters() const noexcept { return waiters_.load(); }
  void tell_waiters() noexcept;
  /// Notes that the connection is over, and wakes all threads that wait for room.
  void give_up() noexcept;

  // For the thread that has the stream.
  /// Returns the next record; empty when nothing waits. Valid until the next call.
  ByteSpan next_record(bool is_beat);
  /// Drops the message at that place, or what is left of it. Returns false when all of it has been taken.
  bool withdraw(Place place);
  /// Copies the bytes of the message's tensors that have not been taken.
  void keep(Place place);

 private:
  struct Item {
    FrameKind kind = FrameKind::message;
    Bytes frame;                   ///< of that kind, in place of a message
    std::optional<Parcel> parcel;  ///< none in a frame
    std::uint64_t end = 0;         ///< of its queue
  };
  struct Queue {
    std::deque<Item> items;
    std::uint64_t put = 0;               ///< bytes of all messages
    std::atomic<std::uint64_t> sent{0};  ///< of those
    std::optional<Item> item;            ///< the one that is being sent; of the thread that has the stream
  };

  const Queue& queue(Place place) const noexcept { return place.is_small ? small_ : large_; }
  void push(Queue& queue, Item&& item) REQUIRES(mutex_);
  bool has_room(Place place) const noexcept;
  bool next_item(Queue& queue);
  bool append_frame();
  bool append_frame_of(Queue& queue);
  void append(FrameKind kind, ByteSpan bytes);
  Item* find(Place place) REQUIRES(mutex_);

  Mutex mutex_;  ///< of the queues' items and `put`
  Queue small_, large_;
  std::atomic<std::size_t> waiting_{0};        ///< items that are not taken to the end
  std::atomic<std::size_t> large_waiting_{0};  ///< of them, in the queue of large ones
  Mutex room_mutex_;
  Condition has_changed_;  ///< `sent`, or is_over_
  std::atomic<int> waiters_{0};
  std::atomic<bool> is_over_{false};

  // Of the thread that has the stream.
  Bytes frame_;
  Queue* sending_ = nullptr;  ///< of the last frame
  ByteSpan rest_;             ///< of the last frame: what is not in a record yet
  std::array<std::byte, TlsStream::kMaxRecordBytes> record_;
  std::size_t record_bytes_ = 0;
};

/// The messages that come over one connection. Large frames are read into their place. Small frames go through a buffer: a
/// single read takes several of them.
/// Thread safety: none of its own: the thread that has the stream.
class Inbox {
 public:
  /// The messages that have arrived, in order.
  struct Arrived {
    std::optional<Bytes> hello, fabric;
    std::vector<Message> messages;
    std::exception_ptr end;  ///< why no more comes
  };
  /// `has_hello`: the other side has been connected to, and is known.
  explicit Inbox(bool has_hello, std::uint64_t max_bytes = kMaxMessageBytes)
      : assembly_(max_bytes), whole_(max_bytes), has_hello_(has_hello) {}

  /// Returns where the next bytes go.
  std::span<std::byte> room() noexcept;
  /// Takes bytes that were written there. Throws protocol.
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
/// Invariants: one thread at a time has the stream. A thread that has let go of it has found nothing to send, or the loop
/// looks
/// again. A closed link delivers nothing more.
class TlsLink {
 public:
  /// `look_again`: the event loop is to call turn() soon, since another thread has left something.
  TlsLink(std::unique_ptr<TlsStream> stream, Side side, std::chrono::milliseconds peer_timeout,
          std::function<void(int fd)> look_again);

  /// The tensors may be written as soon as it returns. Waits for room (see Outbox), so the loop's thread must not call it.
  /// Throws timeout after `until`, and the message is withdrawn then; invalid_argument, and what copying from a card throws.
  /// Does nothing on a link that has ended.
  void put(const Message& message, Stream stream, Deadline until = kForever);
  /// Puts a frame of kind hello or fabric.
  void put_frame(FrameKind kind, Bytes&& bytes);

  /// Receives and sends for a while, and returns what has come. The event loop's thread calls it.
  Inbox::Arrived turn() noexcept;
  /// Sends something, so that the other side knows that this process is there.
  void beat() noexcept;

  /// Ends the connection at the loop's next turn.
  void close() noexcept;
  bool is_closed() const noexcept { return is_closed_.load(); }
  /// Ends the connection for both sides now.
  void end() noexcept;
  /// Returns whether all that was sent is in the other host: the end of a connection may drop what only its socket has taken.
  bool has_arrived() const noexcept;
  bool has_sent_all() const noexcept { return outbox_.is_empty() && !has_unsent_.load(); }
  int waiters() const noexcept { return outbox_.waiters(); }
  /// Returns for how long the other side has said nothing. Members say something each second.
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
  void look_again() const noexcept;

  Mutex streaming_;  ///< of the thread that has the stream
  const std::unique_ptr<TlsStream> stream_ PT_GUARDED_BY(streaming_);
  Inbox inbox_ GUARDED_BY(streaming_);
  Outbox outbox_;
  const int fd_;
  const std::function<void(int)> look_again_;
  std::atomic<bool> is_closed_{false}, has_unsent_{false};
  std::atomic<bool> is_left_to_loop_{false};  ///< the loop has not begun the turn that was asked for
  std::atomic<std::int64_t> last_put_ns_{0};
  std::atomic<int> close_puts_{0};                 ///< each soon after the one before
  bool is_broken_ GUARDED_BY(streaming_) = false;  ///< sending has failed
  std::atomic<std::int64_t> heard_ns_;
};

using TlsLinkRef = std::shared_ptr<TlsLink>;

}  // namespace onecopy::rpc
