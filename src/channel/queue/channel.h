// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "channel/codec/segment_directory.h"
#include "channel/queue/readiness.h"
#include "channel/queue/receiver.h"
#include "channel/queue/sender.h"
#include "channel/ring/ring.h"
#include "onecopy/memory/tensor.h"
#include "share/session.h"

namespace onecopy {

struct QueueProgress;

/// A queue as this process has it open, with any number of Queue objects. If the last object is destroyed while our
/// items have not been taken, or while other processes rely on the creator, the channel stays in the background as long
/// as necessary.
///
/// Thread safety: all members may be called concurrently.
class Channel {
 public:
  /// Makes a queue. Throws out_of_memory, out_of_descriptors, out_of_mappings.
  static Channel& create(const QueueOptions& options);
  static Channel& connect(const Handle& handle, Deadline deadline = kForever);
  /// Counts one more Queue object.
  Channel& enter_again();
  /// Counts one Queue object less.
  void leave() noexcept;
  /// Makes the queue end when this process leaves it, because no other process takes items. REQUIRES: this process is
  /// the creator.
  void read_alone() noexcept { is_read_alone_ = true; }

  /// Counts this process as a producer before its first item, if the queue ends with its producers. Throws system.
  void become_producer() {
    if (ends_with_producers_ && !is_producer_.load(std::memory_order_relaxed)) hold_producer_role();
  }
  bool ends_with_producers() const noexcept { return ends_with_producers_; }
  /// Closes the queue if it ends with its producers and none is left. Returns whether the queue is closed.
  bool close_if_deserted();
  /// Closes the queue, unless a stopped process holds its lock. Returns whether it did.
  bool try_close();

  Handle handle();
  /// Returns the queue's number, which is the same in all processes.
  std::uint64_t id() const noexcept { return id_; }
  Ring& ring() noexcept { return ring_; }
  Sender& sender() noexcept { return sender_; }
  Receiver& receiver() noexcept { return receiver_; }
  /// Returns a descriptor that is readable while the ring has items or is closed. The first call sets the function that
  /// looks around, see Readiness.
  int ready_fd(Readiness::LookAround look_around = {});
  /// Notes that this process has put or taken an item, or found none.
  void note_change() noexcept {
    if (Readiness* readiness = ready_.load(std::memory_order_acquire)) readiness->refresh();
  }
  /// Returns the session of this process, in which the channel is open. A forked child joins at its first use, and
  /// waits for the creator little longer than until the deadline.
  Session& session(Deadline deadline = kForever) {
    Session& now = Session::current();
    if (session_.load(std::memory_order_acquire) != &now || !is_announced_.load(std::memory_order_relaxed))
        [[unlikely]]
      join_again(now, deadline);
    return now;
  }
  /// Returns the session, or null if a forked child has to join first.
  Session* joined_session() {
    Session& now = Session::current();
    return session_.load(std::memory_order_acquire) == &now && is_announced_ ? &now : nullptr;
  }

 private:
  friend class ChannelRegistry;

  /// Makes the channel of a queue. `introducer`: the process whose handle named the queue.
  Channel(Tensor memory, const Fd& ring, const ProcessId& creator, const ProcessId& introducer);
  void hold_producer_role();
  void close() noexcept;
  void join_again(Session& session, Deadline deadline);
  void settle_in(Session& session);
  void announce(Session& session);
  /// Tells the creator. Returns false if the creator does not answer.
  bool try_announce(Session& session);
  std::optional<QueueProgress> progress() const noexcept;
  void count_users(std::size_t others) noexcept;
  void forget_readiness() noexcept;
  /// Returns whether others need the channel, although no Queue object is left here.
  bool is_needed() noexcept;
  bool is_invited() noexcept;
  /// Stops waiting for receivers to join if no user is left. Called when memory is short.
  void give_up() noexcept;
  /// Returns whether no process is left that takes items, ours or later ones of other processes.
  bool is_alone() noexcept;
  void hold_role_in_child() noexcept;
  /// Releases items that have been taken. Returns true while there are more.
  bool poll() noexcept;
  TransitInfo in_transit() const;
  std::uint64_t unkept() const noexcept;

  Tensor memory_;  ///< the ring, in a block that other processes can open
  Ring ring_;
  SegmentDirectory segments_;
  const ProcessId creator_;
  const std::uint64_t id_;
  const bool ends_with_producers_;
  std::atomic<bool> is_producer_{false};
  Sender sender_;
  Receiver receiver_;
  std::unique_ptr<Readiness> readiness_;  ///< guarded by the registry's lock, as are changes of ready_
  std::atomic<Readiness*> ready_{nullptr};
  std::atomic<Session*> session_{nullptr};
  std::atomic<bool> is_announced_{false};  ///< the creator knows of this process
  std::atomic_flag is_announcing_;
  std::uint64_t transit_ = 0;
  std::atomic<bool> is_read_alone_{false};
  std::atomic<std::size_t> queues_{0};  ///< written under the registry's lock
  std::atomic<std::size_t> others_{0};  ///< the number of other processes; known to the creator only
  /// The time until which a process that was sent a handle may join. The hold of the handle has ended, since the handle
  /// has been opened. Only the creator sets the time.
  std::chrono::steady_clock::time_point invited_until_{};
  /// The time since which no process has a Queue object of the queue.
  std::optional<std::chrono::steady_clock::time_point> alone_since_;
  std::atomic<bool> is_left_{false};  ///< whether alone_since_ has a value; for listings
};

}  // namespace onecopy
