// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "channel/queue/channel.h"
#include "channel/ring/doorbell.h"
#include "onecopy/memory/tensor.h"
#include "rpc/far/far_link.h"

namespace onecopy::rpc {

struct LeaveChannel {
  void operator()(Channel* channel) const noexcept { channel->leave(); }
};
using ChannelRef = std::unique_ptr<Channel, LeaveChannel>;

/// The doorbell of a process, in memory that others ring it through.
/// Thread safety: all members may be called concurrently.
class DoorbellMemory {
 public:
  /// A new one. Throws out_of_memory.
  DoorbellMemory();
  /// The doorbell of another process. Throws as open() does, and protocol for memory that is no doorbell.
  explicit DoorbellMemory(const Handle& handle);

  Doorbell& operator*() const noexcept { return *bell_; }
  Doorbell* operator->() const noexcept { return bell_; }
  Handle handle() const;

 private:
  Tensor memory_;
  Doorbell* bell_;
};

/// Messages from one process, in order, to this one, which made the ring: so it keeps the memory of a sender that dies.
///
/// Thread safety: is_ready() may be called by any thread, try_take() by one at a time.
class Inbound {
 public:
  /// A new one. Throws out_of_memory, out_of_descriptors, out_of_mappings.
  Inbound();

  bool is_ready() const { return channel_->ring().is_ready(); }
  /// The next message; empty if there is none. A message whose tensors are lost is logged, and passed over. Throws
  /// protocol for a damaged ring, timeout while a stopped process keeps it.
  std::optional<Message> try_take();
  Handle handle() { return channel_->handle(); }
  /// A sender into this ring, for a process that sends to itself.
  ChannelRef sender_to_itself() { return ChannelRef(&channel_->enter_again()); }

 private:
  ChannelRef channel_;
};

/// Messages to one process, from all threads of this one: through its lane, or over a connection to another host.
/// Thread safety: all members may be called concurrently.
class Outbound {
 public:
  Outbound(ChannelRef channel, std::shared_ptr<const DoorbellMemory> bell)
      : channel_(std::move(channel)), bell_(std::move(bell)) {}
  explicit Outbound(FarLinkRef link) : link_(std::move(link)) {}

  /// Puts a message without ringing. Throws closed, out_of_memory, timeout while a stopped process keeps the ring
  /// and, to another host, after `until`. In the order of `stream`, as queues do it.
  void put(const Message& message, Stream stream = {}, Deadline until = kForever);
  /// Returns whether so many messages lie unread in the lane that calls have to wait. A connection to another host holds up
  /// puts by itself.
  bool is_full() noexcept {
    if (!channel_) return false;
    const std::uint64_t put = channel_->ring().tail();
    if (put - head_seen_.load(std::memory_order_relaxed) < kMaxUnread) return false;
    head_seen_.store(channel_->ring().head(), std::memory_order_relaxed);
    return put - head_seen_.load(std::memory_order_relaxed) >= kMaxUnread;
  }
  /// The member has ended: it takes no further item, and tensors of its items need not be kept.
  void drop_sent() noexcept {
    if (channel_) channel_->sender().in_flight().release_taken(UINT64_MAX);
  }
  /// Rings the member's bell after put(). A message to another host needs no ring.
  void ring_for_call() const noexcept {
    if (bell_) (*bell_)->ring_for_call();
  }
  void ring_for_answer() const noexcept {
    if (bell_) (*bell_)->ring_for_answer();
  }
  /// Returns whether the threads that listen for calls, or for answers, share this thread's processor. See Bell.
  bool is_worker_beside_us() const noexcept { return bell_ && (*bell_)->calls.shares_processor(); }
  bool is_waiter_beside_us() const noexcept { return bell_ && (*bell_)->answers.shares_processor(); }

 private:
  static constexpr std::uint64_t kMaxUnread = 16'384;

  std::atomic<std::uint64_t> head_seen_{0};  ///< the member has read at least up to here
  FarLinkRef link_;                          ///< to another host; there is no channel then
  ChannelRef channel_;
  std::shared_ptr<const DoorbellMemory> bell_;  ///< the member's, or this process's own
};

}  // namespace onecopy::rpc
