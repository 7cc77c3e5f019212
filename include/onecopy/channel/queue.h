// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "onecopy/channel/message_kind.h"
#include "onecopy/core/api.h"
#include "onecopy/core/bytes.h"
#include "onecopy/device/stream.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/handle.h"

namespace onecopy {
class Channel;
}  // namespace onecopy

ONECOPY_API_BEGIN
namespace onecopy {

/// A message of a queue: bytes, and tensors that are passed without a copy.
struct Message {
  std::uint32_t tag = 0;  ///< a number of the program's own
  Bytes data{};
  std::vector<Tensor> tensors{};
  MessageKind kind = MessageKind::user;
  /// The card of the receiver into which a call to another host may write each tensor. -1, or no entry, stands for
  /// the host's memory. Queues do not use these numbers.
  std::vector<std::int16_t> cards{};
};

/// The options of Queue::create().
struct QueueOptions {
  std::uint64_t maxsize = 0;  ///< the max number of messages; 0 for as many as memory allows
  /// The address space for messages, in bytes, which each process reserves twice. Memory is used only for the messages
  /// present. The value is rounded down to a power of two of at least 1 MiB (4,096 messages). A process with a limit of
  /// address space (RLIMIT_AS) reserves at most a 64th of what the limit leaves. put() throws out_of_memory when the range is full. Programs with hundreds of queues should
  /// choose less.
  std::uint64_t range = std::uint64_t{4} << 30;
  /// Allows waits to poll for a few microseconds before they sleep, if every process that has opened the queue can have
  /// a processor of its own. Set to false if more threads are at work than there are processors.
  bool may_spin = true;
  /// Ends the queue with its producers: once none is left, gets return the remaining messages and then throw closed,
  /// and ready_fd() becomes readable. A process is a producer from its first put() or prepare_put() until it exits, is
  /// killed, or destroys its last Queue object of the queue; a forked child is one from its own first put. Gets notice
  /// within about a tenth of a second. Costs a system call at a producer's first put, and ten a second while a
  /// consumer waits.
  bool ends_with_producers = false;
};

/// A queue of messages, in order, from any number of producers to any number of consumers in any processes. Tensors are
/// passed, not copied: producer and consumer use the same memory. A message is delivered even if its producer has
/// exited or was killed, and the death of a process does not damage the queue: other producers may put more, so a get
/// waits on, unless the queue has QueueOptions::ends_with_producers. For a tensor to be delivered, one of
/// three processes must live until it is received: its owner, its producer, or the creator of the queue. Memory of
/// cudaMalloc and of Ascend ends with the process that allocated it, so a tensor there needs its owner.
///
/// A get throws stale_handle or owner_died if a tensor of the message is lost: its owner freed it, or died and no
/// process kept the memory. A get throws peer_died if the producer died, or its device failed, before its stream had
/// written the tensors. The message is lost; the queue stays usable.
///
/// Thread safety: all members may be called concurrently, except moving. A forked child may use the queue it inherited.
/// Move-only; the members of a Queue that was moved from throw closed. Destroying the object leaves the queue, once this
/// process's streams have written the tensors it has put.
class Queue {
 public:
  /// Creates a queue. Throws out_of_memory, out_of_descriptors, out_of_mappings.
  static Queue create(const QueueOptions& options = {});
  /// Opens the queue that the handle names. Throws what open() throws, and bad_handle for a handle of anything else;
  /// `timeout` limits the time to wait for a stopped process, as OpenOptions::timeout does.
  static Queue connect(const Handle& handle, std::chrono::nanoseconds timeout = std::chrono::seconds(10));
  /// Returns a handle with which another process opens the queue. The handle is valid while any process has it open.
  Handle handle() const;

  Queue(Queue&& other) noexcept : channel_(std::exchange(other.channel_, nullptr)) {}
  Queue& operator=(Queue&& other) noexcept {
    Queue last(std::move(other));
    std::swap(channel_, last.channel_);
    return *this;
  }
  ~Queue();

  // `stream` belongs to the device of the message's tensors; the default means the device's default stream. Work that
  // is in the producer's stream at the put is done before work that is given to the consumer's stream after the get.
  // The memory is reused only after the work that is in the consumer's stream when the tensor is dropped. The host does
  // not wait for any of this. A named stream must live as long as the tensor, and all tensors of the message must be on
  // its device.
  //
  // A message without tensors of a device is ordered as well, once this process has shared or opened memory of a
  // device: the message comes after the work that is in the stream (or in the default stream of each of these devices)
  // at the put. A consumer receives the message at once; work given to the consumer's streams after the get waits, on
  // every device whose memory the consumer has opened or opens later.
  //
  // A named stream must then belong to the one device that this process has used. If the process has used several,
  // put() throws invalid_argument, and a get waits on the host, as does a get in a stream that is being captured. An
  // idle stream costs one query. A stream that is being captured, whose device has failed, or that belongs to Ascend
  // orders nothing. The message is delivered even if the work never completes, and the log says so. Work that itself
  // waits for the consumer must go into another stream.

  /// Puts a message, and waits while the queue is full. Throws closed, out_of_memory (the queue is unchanged then),
  /// invalid_argument for memory of other libraries, and unsupported for a stream that is being captured.
  ///
  /// Throws timeout if a stopped process (SIGSTOP, a debugger) holds the queue's lock, or if the process that must be
  /// asked (the queue's creator, or the owner of the next message's tensors) is stopped. A call with a timeout then
  /// ends at most a tenth of a second late for each of them; a call without one ends after ten seconds of asking.
  /// Nothing was put or taken: retry once the process runs.
  void put(const Tensor& tensor, Stream stream = {});
  void put(const Message& message, Stream stream = {});
  /// Puts the tensor and empties it, which costs less than keeping it.
  void put(Tensor&& tensor, Stream stream = {});
  /// Returns false if the queue stayed full for the timeout; a timeout of zero does not wait. Throws what put() throws.
  bool try_put(const Tensor& tensor, std::chrono::nanoseconds timeout = {}, Stream stream = {});
  bool try_put(const Message& message, std::chrono::nanoseconds timeout = {}, Stream stream = {});
  bool try_put(Tensor&& tensor, std::chrono::nanoseconds timeout = {}, Stream stream = {});
  /// Does what try_put() does without waiting, for callers that block other threads (with an interpreter's lock). Also
  /// returns false if the queue's creator must first be asked to keep memory, which prepare_put() does.
  bool try_put_at_once(const Message& message, Stream stream = {});
  /// Asks the queue's creator to keep the memory of this message's tensors for later consumers, unless it was asked
  /// before. Puts nothing. A put also asks if necessary. Waits at most two seconds if the creator does not answer, and
  /// not longer than the timeout or a tenth of a second, whichever is greater. Throws what put() throws.
  void prepare_put(const Message& message, std::chrono::nanoseconds timeout);
  /// Waits until the queue has space, which other producers may take, or is closed. Puts nothing. Returns false if the
  /// queue stayed full for the timeout.
  bool wait_for_space(std::chrono::nanoseconds timeout = {}) const;

  /// Waits for a message. Throws closed if the queue is closed and empty, and timeout as put() does.
  Message get(Stream stream = {});
  /// Returns an empty optional if no message came within the timeout; a timeout of zero does not wait. Throws closed if
  /// the queue is closed and empty.
  std::optional<Message> try_get(std::chrono::nanoseconds timeout = {}, Stream stream = {});
  /// Does what try_get() does without waiting, for callers that block other threads (with an interpreter's lock). Takes
  /// less than a microsecond, or 20 ms before it throws timeout if a stopped process holds the lock. Also returns an
  /// empty optional, and leaves the message first in the queue, if the message is long or if opening its tensors
  /// requires a request to another process.
  std::optional<Message> try_get_at_once(Stream stream = {});
  /// Waits for a message that was put as one tensor. Throws invalid_argument for any other message and leaves it in the
  /// queue.
  Tensor get_tensor(Stream stream = {});
  std::optional<Tensor> try_get_tensor(std::chrono::nanoseconds timeout = {}, Stream stream = {});

  /// Returns the number of messages in the queue. Other processes may change it at any time.
  std::uint64_t size() const;
  bool empty() const { return size() == 0; }
  std::uint64_t maxsize() const;
  /// Returns a descriptor for select, poll and epoll. The descriptor is readable while a get would not wait: while the
  /// queue holds messages or is closed. A message makes it readable, usually within a tenth of a
  /// millisecond and always within 100 ms. The descriptor may stay readable a little longer, so call try_get() once
  /// select returns. The descriptor stays open and the same while this process has the queue open; a forked child gets
  /// another one when it asks. The caller must not read from or close the descriptor. The first call starts a thread
  /// that sleeps on the queue. Throws out_of_descriptors, out_of_memory.
  int ready_fd() const;
  /// Closes the queue for all processes: puts fail, and gets return the remaining messages. Throws timeout if a stopped
  /// process holds the queue's lock; the queue stays open then.
  void close();
  bool is_closed() const;

 private:
  explicit Queue(Channel& channel) noexcept : channel_(&channel) {}
  Channel& channel() const;

  Channel* channel_;  ///< reference-counted: see Channel::leave
};

}  // namespace onecopy
ONECOPY_API_END
