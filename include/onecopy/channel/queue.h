// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "onecopy/core/bytes.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/handle.h"

namespace onecopy {

class Channel;

/// What crosses a queue: plain bytes, and tensors that are not copied.
struct Message {
  std::uint32_t tag = 0;  ///< the user's own
  Bytes data;
  std::vector<Tensor> tensors;
};

struct QueueOptions {
  std::uint64_t maxsize = 0;  ///< items; 0 = as many as memory allows
};

/// Messages, in order, from any number of producers to any number of consumers in any processes.
/// Tensors are passed, not copied: getter and putter see the same memory. What was put is delivered
/// also when its putter has exited or was killed meanwhile, and no process harms the queue by dying.
///
/// A get whose tensors are lost (their owner freed them, or died and nobody kept them) throws
/// stale_handle or owner_died; that item is gone, the queue goes on.
///
/// Thread safety: all members may be called concurrently, but for moving. A forked child may use what
/// it inherited. Move-only; destroying it means that this process leaves.
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

  /// Waits while the queue is full. Throws closed, out_of_memory (nothing has changed then),
  /// invalid_argument for memory of other libraries.
  void put(const Tensor& tensor);
  void put(const Message& message);
  /// False when the queue was full all the time; zero: does not wait.
  bool try_put(const Tensor& tensor, std::chrono::nanoseconds timeout = {});
  bool try_put(const Message& message, std::chrono::nanoseconds timeout = {});

  /// Waits for a message. Throws closed when the queue is closed and empty.
  Message get();
  /// Nothing when there was none until the timeout; zero: does not wait.
  std::optional<Message> try_get(std::chrono::nanoseconds timeout = {});
  /// Waits for what was put as one tensor. Throws invalid_argument, and leaves the message where it
  /// is, when it is another one.
  Tensor get_tensor();
  std::optional<Tensor> try_get_tensor(std::chrono::nanoseconds timeout = {});

  /// Items waiting now; others may change it at any time.
  std::uint64_t size() const;
  bool empty() const { return size() == 0; }
  std::uint64_t maxsize() const;
  /// Puts fail from here on, gets drain what is there; for all processes.
  void close();
  bool is_closed() const;

 private:
  explicit Queue(Channel& channel) noexcept : channel_(&channel) {}

  Channel* channel_;  ///< counted: see Channel::leave
};

}  // namespace onecopy
