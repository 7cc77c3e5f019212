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

/// What crosses a queue: plain bytes, and tensors that are not copied.
struct Message {
  std::uint32_t tag = 0;  ///< the user's own
  Bytes data;
  std::vector<Tensor> tensors;
  MessageKind kind = MessageKind::user;
};

struct QueueOptions {
  std::uint64_t maxsize = 0;  ///< items; 0 = as many as memory allows
  /// Bytes of addresses for items, which each process reserves twice; memory is taken for items that are there. Rounded
  /// down to a power of two, 1 MiB at least (4,096 items); halved where a process may not have as many. put() throws
  /// out_of_memory when they are full. Programs with hundreds of queues want fewer.
  std::uint64_t range = std::uint64_t{4} << 30;
  /// Waits look for a few microseconds before they sleep, as long as each process that has the queue open can have a
  /// processor of its own. False for more threads at work than processors.
  bool may_spin = true;
};

/// Messages, in order, from any number of producers to any number of consumers in any processes.
/// Tensors are passed, not copied: getter and putter see the same memory. What was put is delivered
/// also when its putter has exited or was killed meanwhile, and no process harms the queue by dying. A tensor needs
/// one of three that live until it is taken: its owner, its putter, the queue's creator.
///
/// Not so memory of cudaMalloc and of Ascend, which ends with the process that allocated it.
///
/// A get whose tensors are lost (their owner freed them, or died and nobody kept them) throws
/// stale_handle or owner_died; that item is gone, the queue goes on. So does one whose putter died, or its device
/// failed, before its stream had written them: peer_died.
///
/// Thread safety: all members may be called concurrently, but for moving. A forked child may use what
/// it inherited. Move-only; destroying it means that this process leaves, once its streams have written
/// what it has put.
class Queue {
 public:
  /// Throws out_of_memory, out_of_descriptors, out_of_mappings.
  static Queue create(const QueueOptions& options = {});
  /// Throws what open() throws, and bad_handle when the handle is not a queue's.
  static Queue connect(const Handle& handle);
  /// For connecting in another process; works while any process has the queue open.
  Handle handle() const;

  Queue(Queue&& other) noexcept : channel_(std::exchange(other.channel_, nullptr)) {}
  Queue& operator=(Queue&& other) noexcept {
    std::swap(channel_, other.channel_);
    return *this;
  }
  ~Queue();

  // Streams are those of devices whose tensors cross the queue, and the default stream of each when none is
  // named: what is in the putter's then is done before what the getter's is given after the get, and the
  // memory is not reused before what is in the getter's when it drops the tensor. No host waits for that.
  // A stream that is named must live as long as the tensor, and a message's tensors be on its one device.
  //
  // A message without tensors on devices has an order, too, once this process has shared or opened memory of a device:
  // it comes after the work that the stream, or each such device's default stream, has at the put. A getter has it at
  // once; what is given to the getter's streams after the get waits for that work, on every device whose memory it has
  // opened or opens later. The stream that is named must then be of the one device that this process has used: put()
  // throws invalid_argument where it has used several, and a get waits on the host. So does a get in a stream that is
  // being captured. A stream that is idle costs a query and no more; one that is being captured, or whose device has
  // failed, orders nothing, and so does one of Ascend. The message is delivered also when the work is never done, and
  // the log says so. Work that itself waits for what the getter will do must be put into another stream.

  /// Waits while the queue is full. Throws closed, out_of_memory (nothing has changed then),
  /// invalid_argument for memory of other libraries, unsupported for a stream that is being captured.
  /// A queue waits for a process that is stopped (SIGSTOP, a debugger) and keeps its lock, created it, or owns what
  /// is next and has to be asked about: calls that have a timeout throw timeout then, a tenth of a second after it
  /// for each process that had to be asked, and so do those without one that have asked for ten seconds. Nothing was
  /// put or taken: try again once it runs.
  void put(const Tensor& tensor, Stream stream = {});
  void put(const Message& message, Stream stream = {});
  /// The same, and lets go of the tensor, which is empty afterwards: cheaper than keeping it.
  void put(Tensor&& tensor, Stream stream = {});
  /// False when the queue was full all the time; zero: does not wait. Throws as put() does.
  bool try_put(const Tensor& tensor, std::chrono::nanoseconds timeout = {}, Stream stream = {});
  bool try_put(const Message& message, std::chrono::nanoseconds timeout = {}, Stream stream = {});
  bool try_put(Tensor&& tensor, std::chrono::nanoseconds timeout = {}, Stream stream = {});
  /// try_put() for callers that keep others waiting, e.g. with an interpreter's lock: false also when the queue's
  /// creator has to be told something first. prepare_put() does that.
  bool try_put_at_once(const Message& message, Stream stream = {});
  /// Puts nothing: asks the queue's creator to keep the memory of this message's tensors for receivers to come, where
  /// it has not been asked yet. A put does so itself. Two seconds at most are waited for a creator that does not answer,
  /// and no longer than the timeout or a tenth of a second. Throws as put() does.
  void prepare_put(const Message& message, std::chrono::nanoseconds timeout);
  /// Puts nothing: waits until there is space, which others may take, or the queue is closed. False when it was full
  /// all the time.
  bool wait_for_space(std::chrono::nanoseconds timeout = {}) const;

  /// Waits for a message. Throws closed when the queue is closed and empty.
  Message get(Stream stream = {});
  /// Nothing when there was none until the timeout; zero: does not wait. Throws closed when the queue is closed and
  /// empty.
  std::optional<Message> try_get(std::chrono::nanoseconds timeout = {}, Stream stream = {});
  /// try_get() for callers that keep others waiting, e.g. with an interpreter's lock: takes under a
  /// microsecond, but 20 ms before it throws timeout when a stopped process has the lock. Nothing also
  /// when the first message is long, or when opening its tensors would mean to ask another process; it
  /// stays the first then.
  std::optional<Message> try_get_at_once(Stream stream = {});
  /// Waits for what was put as one tensor. Throws invalid_argument, and leaves the message where it
  /// is, when it is another one.
  Tensor get_tensor(Stream stream = {});
  std::optional<Tensor> try_get_tensor(std::chrono::nanoseconds timeout = {}, Stream stream = {});

  /// Items waiting now; others may change it at any time.
  std::uint64_t size() const;
  bool empty() const { return size() == 0; }
  std::uint64_t maxsize() const;
  /// A descriptor for select, poll and epoll: readable while a get would not wait, that is while there
  /// are messages or the queue is closed. It may be readable a little longer, so use try_get() then;
  /// it is never unreadable for longer than 100 ms while there is something. The descriptor stays the
  /// same and open while this process has the queue; a forked child gets another one when it asks.
  /// Nobody may read or close it. The first call starts a thread that sleeps on the queue. Throws
  /// out_of_descriptors, out_of_memory.
  int ready_fd() const;
  /// Puts fail from here on, gets drain what is there; for all processes. Throws timeout when a process that is
  /// stopped keeps the queue's lock; then the queue is still open.
  void close();
  bool is_closed() const;

 private:
  explicit Queue(Channel& channel) noexcept : channel_(&channel) {}

  Channel* channel_;  ///< counted: see Channel::leave
};

}  // namespace onecopy
