// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "channel/queue/channel.h"
#include "channel/ring/doorbell.h"
#include "onecopy/memory/tensor.h"
#include "rpc/transport.h"

namespace onecopy::rpc {

struct LeaveChannel {
  void operator()(Channel* channel) const noexcept { channel->leave(); }
};
using ChannelRef = std::unique_ptr<Channel, LeaveChannel>;

/// The doorbell of a process, in memory that others ring it through.
/// Thread safety: all members may be called concurrently.
class DoorbellMemory {
 public:
  /// Makes a doorbell. Throws out_of_memory.
  DoorbellMemory();
  /// Opens the doorbell of another process. Throws as open() does, and protocol for memory that is not a doorbell.
  explicit DoorbellMemory(const Handle& handle);

  Doorbell& operator*() const noexcept { return *bell_; }
  Doorbell* operator->() const noexcept { return bell_; }
  Handle handle() const;

 private:
  Tensor memory_;
  Doorbell* bell_;
};

/// The messages from one process to this one, in order. The receiver makes the ring, so the memory stays when a sender
/// dies.
///
/// Thread safety: is_ready() may be called by any thread, try_take() by one at a time.
class Inbound {
 public:
  /// Makes an empty lane. Throws out_of_memory, out_of_descriptors, out_of_mappings.
  Inbound();

  bool is_ready() const { return channel_->ring().is_ready(); }
  /// Returns the next message, or nothing if there is none. A message whose tensors are lost is logged and skipped.
  /// Waits for up to about `patience` for the owner of the message's memory. Throws protocol for a damaged ring. Throws
  /// timeout while the owner does not answer or a stopped process holds the ring's lock, and the errors of a shortage;
  /// the message is then taken later.
  std::optional<Message> try_take(std::chrono::milliseconds patience);
  /// Throws protocol if the ring says that there is a message although there is none.
  void check() {
    if (!channel_->ring().is_closed()) channel_->ring().wait(kNow);
  }
  Handle handle() { return channel_->handle(); }
  /// Refuses further messages: senders get closed. Throws timeout if a stopped process holds the ring's lock until then.
  void close(Deadline deadline) { channel_->ring().close(deadline); }
  /// Returns a sender into this ring, for messages of this process to itself.
  ChannelRef sender_to_itself() { return ChannelRef(&channel_->enter_again()); }

 private:
  ChannelRef channel_;
};

/// A connection to one process of this host, through the lane of that process.
/// Thread safety: all members may be called concurrently.
class RingConnection final : public Connection {
 public:
  /// Constructs a connection. `bell` is the member's doorbell, or this process's own for messages to itself; null if no
  /// thread is to be woken.
  RingConnection(ChannelRef channel, std::shared_ptr<const DoorbellMemory> bell)
      : channel_(std::move(channel)), bell_(std::move(bell)) {}

  /// Sends as Connection::send() says. Throws timeout also if a stopped process holds the ring's lock for ten seconds.
  void send(const Message& message, Stream stream, Deadline deadline) override;
  bool is_full() noexcept override;
  void ring_for_call() const noexcept override {
    if (bell_) (*bell_)->ring_for_call();
  }
  void ring_for_answer() const noexcept override {
    if (bell_) (*bell_)->ring_for_answer();
  }
  bool worker_shares_cpu() const noexcept override { return bell_ && (*bell_)->calls.shares_processor(); }
  bool waiter_shares_cpu() const noexcept override { return bell_ && (*bell_)->answers.shares_processor(); }
  void drop_sent() noexcept override { channel_->sender().in_flight().release_taken(UINT64_MAX); }

 private:
  static constexpr std::uint64_t kMaxUnread = 16'384;

  std::atomic<std::uint64_t> head_seen_{0};  ///< the member has read at least all messages before this one
  const ChannelRef channel_;
  const std::shared_ptr<const DoorbellMemory> bell_;
};

}  // namespace onecopy::rpc
