// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "onecopy/channel/message_kind.h"
#include "onecopy/core/bytes.h"
#include "onecopy/device/stream.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/handle.h"

namespace onecopy {

class Channel;

/// An item of a queue: plain bytes, and tensors that are not copied.
struct Message {
  std::uint32_t tag = 0;  ///< the user's own
  Bytes data;
  std::vector<Tensor> tensors;
  MessageKind kind = MessageKind::user;
};

/// Options of Queue::create().
struct QueueOptions {
  std::uint64_t maxsize = 0;  ///< items; 0 = as many as memory allows
  /// Bytes of addresses for items, which each process reserves twice; memory is taken for present items only. Rounded
  /// down to a power of two, 1 MiB at least (4,096 items); halved if a process may not have as many. put() throws
  /// out_of_memory when they are full. Programs with hundreds of queues want fewer.
  std::uint64_t range = std::uint64_t{4} << 30;
  /// Lets waits poll for a few microseconds before they sleep, if each process that has the queue open can have a
  /// processor of its own. Set it to false for more threads at work than processors.
  bool may_spin = true;
};

/// Messages, in order, from any number of producers to any number of consumers in any processes. Tensors are passed,
/// not copied: getter and putter see one memory. A message is delivered also if its putter has exited or was killed
/// meanwhile, and no process harms the queue by dying. For a tensor, one of three processes must live until it is
/// taken: its owner, its putter, or the queue's creator.
///
/// Memory of cudaMalloc and of Ascend ends with the process that allocated it, so it needs its owner.
///
/// A get throws stale_handle or owner_died if its tensors are lost: their owner freed them, or died and no process
/// kept them. It throws peer_died if the putter died, or its device failed, before its stream had written the
/// tensors. That item is gone, the queue goes on.
///
/// Thread safety: all members may be called concurrently, but for moving. A forked child may use what it inherited.
/// Move-only; destroying it means that this process leaves, once its streams have written the tensors it has put.
class Queue {
 public:
  /// Throws out_of_memory, out_of_descriptors, out_of_mappings.
  static Queue create(const QueueOptions& options = {});
  /// Throws as open() does, and bad_handle if the handle is not a queue's.
  static Queue connect(const Handle& handle);
  /// Returns a handle for connecting in another process, valid while any process has the queue open.
  Handle handle() const;

  Queue(Queue&& other) noexcept : channel_(std::exchange(other.channel_, nullptr)) {}
  Queue& operator=(Queue&& other) noexcept {
    std::swap(channel_, other.channel_);
    return *this;
  }
  ~Queue();

  // `stream` belongs to the device of the message's tensors; if none is named, the default stream of each such device
  // is meant. Work in the putter's stream at the put is done before work given to the getter's stream after the get.
  // The memory is not reused before the work in the getter's stream at the drop of the tensor. No host waits for
  // that. A named stream must live as long as the tensor, and all tensors of the message must be on its device.
  //
  // A message without tensors on devices has an order, too, once this process has shared or opened memory of a
  // device. It comes after the work in the stream, or in each such device's default stream, at the put. A getter has
  // it at once. Work given to the getter's streams after the get waits, on every device whose memory the getter has
  // opened or opens later.
  //
  // A named stream must then be of the one device that this process has used. If it has used several, put() throws
  // invalid_argument, and a get waits on the host. So does a get in a stream that is being captured. An idle stream
  // costs one query. A stream that is being captured, or whose device has failed, orders nothing, and so does one of
  // Ascend. The message is delivered also if the work is never done, and the log says so. Work that itself waits for
  // the getter must be put into another stream.

  /// Waits while the queue is full. Throws closed, out_of_memory (nothing has changed then), invalid_argument for
  /// memory of other libraries, unsupported for a stream that is being captured.
  ///
  /// Throws timeout if a stopped process (SIGSTOP, a debugger) holds the queue's lock, or is the queue's creator or
  /// the owner of the next item and must be asked. A call with a timeout then ends a tenth of a second after it for
  /// each such process; a call without one after ten seconds of asking. Nothing was put or taken: try again once the
  /// process runs.
  void put(const Tensor& tensor, Stream stream = {});
  void put(const Message& message, Stream stream = {});
  /// Puts and empties the tensor: cheaper than keeping it.
  void put(Tensor&& tensor, Stream stream = {});
  /// Returns false if the queue was full all the time; zero: does not wait. Throws as put() does.
  bool try_put(const Tensor& tensor, std::chrono::nanoseconds timeout = {}, Stream stream = {});
  bool try_put(const Message& message, std::chrono::nanoseconds timeout = {}, Stream stream = {});
  bool try_put(Tensor&& tensor, std::chrono::nanoseconds timeout = {}, Stream stream = {});
  /// try_put() for callers that keep others waiting, e.g. with an interpreter's lock. Also returns false if the
  /// queue's creator must first be asked to keep memory: prepare_put() does that.
  bool try_put_at_once(const Message& message, Stream stream = {});
  /// Puts nothing: asks the queue's creator to keep the memory of this message's tensors for receivers to come,
  /// unless it has been asked already. A put does so itself. If the creator does not answer, waits two seconds at
  /// most, and no longer than the timeout or a tenth of a second. Throws as put() does.
  void prepare_put(const Message& message, std::chrono::nanoseconds timeout);
  /// Puts nothing: waits until there is space, which others may take, or the queue is closed. Returns false if it was
  /// full all the time.
  bool wait_for_space(std::chrono::nanoseconds timeout = {}) const;

  /// Waits for a message. Throws closed if the queue is closed and empty.
  Message get(Stream stream = {});
  /// Returns an empty optional if no message came until the timeout; zero: does not wait. Throws closed if the queue
  /// is closed and empty.
  std::optional<Message> try_get(std::chrono::nanoseconds timeout = {}, Stream stream = {});
  /// try_get() for callers that keep others waiting, e.g. with an interpreter's lock. Takes under a microsecond, but
  /// 20 ms before it throws timeout if a stopped process has the lock. Also empty if the first message is long, or if
  /// opening its tensors would mean to ask another process; it stays the first then.
  std::optional<Message> try_get_at_once(Stream stream = {});
  /// Waits for a message that was put as one tensor. If the message is another one, throws invalid_argument and
  /// leaves it in its place.
  Tensor get_tensor(Stream stream = {});
  std::optional<Tensor> try_get_tensor(std::chrono::nanoseconds timeout = {}, Stream stream = {});

  /// Items waiting now; others may change it at any time.
  std::uint64_t size() const;
  bool empty() const { return size() == 0; }
  std::uint64_t maxsize() const;
  /// A descriptor for select, poll and epoll. It is readable while a get would not wait, that is while there are
  /// messages or the queue is closed. It may be readable a little longer, so use try_get() then; it is never
  /// unreadable for longer than 100 ms while there is a message. It stays unchanged and open while this process has
  /// the queue; a forked child gets another one when it asks. Callers must not read or close it. The first call
  /// starts a thread that sleeps on the queue. Throws out_of_descriptors, out_of_memory.
  int ready_fd() const;
  /// Closes the queue for all processes: puts fail, and gets drain the remaining messages. Throws timeout if a stopped
  /// process keeps the queue's lock; then the queue is still open.
  void close();
  bool is_closed() const;

 private:
  explicit Queue(Channel& channel) noexcept : channel_(&channel) {}

  Channel* channel_;  ///< counted: see Channel::leave
};

}  // namespace onecopy
