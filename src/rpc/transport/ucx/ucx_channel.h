// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "onecopy/device/stream.h"
#include "os/deadline.h"
#include "os/mutex.h"
#include "rpc/transport/room.h"
#include "rpc/transport/ucx/ucx_worker.h"

namespace onecopy::rpc {

/// A channel for messages between this process and another one over UCX, in both directions. Each side gives the
/// channel a random number, by which the messages to that side name the channel. The numbers and the addresses of the
/// workers are exchanged over TLS.
///
/// A message goes as active messages: its beginning, and each part of a large tensor, by rendezvous, into memory that the
/// receiver has reserved. UCX reads a tensor while sending it, so the tensor stays claimed until it is sent, and what is
/// written into the tensor before that may or may not arrive.
///
/// Thread safety: all members may be called concurrently.
/// Invariant: the functions are called by the event loop's thread, without locks, and not after close().
class UcxChannel : public std::enable_shared_from_this<UcxChannel> {
 public:
  struct Handlers {
    std::function<void(Message&&)> deliver;
    /// Reports the first answer to ask().
    std::function<void()> opened;
    /// Reports, perhaps on a thread that sends, that the other process cannot be reached over UCX.
    std::function<void()> failed;
  };

  explicit UcxChannel(std::shared_ptr<UcxWorker> worker);
  ~UcxChannel() { close(); }
  UcxChannel(const UcxChannel&) = delete;
  UcxChannel& operator=(const UcxChannel&) = delete;

  /// Returns the address that the other side passes to connect(). Messages may arrive after this call.
  Bytes address() const;
  /// Connects to the other side. Throws protocol, system.
  void connect(ByteSpan address, Handlers handlers);
  /// Sends a message. Waits for room, so the loop's thread must not call it. Throws timeout, with nothing sent, if
  /// there is no room by the deadline, and invalid_argument for a message that cannot be sent. Does nothing on a closed
  /// channel.
  void put(const Message& message, Stream stream, Deadline deadline);
  /// Returns whether tensors of cards are sent from the card's memory.
  bool takes_cards() const noexcept { return takes_cards_.load(); }
  /// Asks the other side to tell when it has received all messages that were sent before.
  void ask();
  /// Returns whether the other side has answered ask(), or the channel is over.
  bool has_arrived() const noexcept { return has_answer_.load() || is_over_.load(); }
  /// Delivers what has arrived so far. The loop's thread calls it.
  void take_rest() noexcept { worker_.turn(); }
  /// Ends the channel for both sides, and wakes all threads that wait for room.
  void close() noexcept;

 private:
  friend class UcxWorker;
  struct Sending;
  struct Unsent {
    UcxHead next_part;
    Tensor tensor;
  };

  std::atomic<std::uint64_t>& under_way(bool is_small) noexcept { return is_small ? small_ : large_; }
  void post(std::unique_ptr<Sending> sending) REQUIRES(worker_.using_);
  /// Returns false on a channel that is not open.
  bool post_all(Bytes&& first_piece, const std::vector<Tensor>& tensors, bool is_small);
  void post_parts() REQUIRES(worker_.using_);
  static void finish(Sending& sending) noexcept;
  static void sent(void* request, ucx::ucs_status_t status, void* sending);
  static void broken(void* channel, ucx::ucp_ep_h endpoint, ucx::ucs_status_t status);
  bool has_lane_for_cards() REQUIRES(worker_.using_);
  void fail() noexcept;
  /// Returns whether the first answer is to be reported.
  bool is_answered() const noexcept { return has_answer_ && handlers_.opened; }
  void handle(std::vector<UcxInbox::Arrived>&& arrived);

  const std::shared_ptr<UcxWorker> kept_;
  UcxWorker& worker_;
  const std::uint64_t session_;
  Handlers handlers_;
  std::uint64_t their_session_ GUARDED_BY(worker_.using_) = 0;
  ucx::ucp_ep_h endpoint_ GUARDED_BY(worker_.using_) = nullptr;
  std::uint64_t sent_ GUARDED_BY(worker_.using_) = 0;
  UcxInbox inbox_ GUARDED_BY(worker_.using_);
  std::deque<Unsent> unsent_
      GUARDED_BY(worker_.using_);  ///< tensors of which UCX does not have all parts yet
  int parts_under_way_ GUARDED_BY(worker_.using_) = 0;

  std::atomic<std::uint64_t> small_{0}, large_{0};  ///< bytes under way
  std::atomic<bool> is_over_{false}, has_failed_{false}, has_answer_{false}, is_closed_{false};
  std::atomic<bool> takes_cards_{false};
  Room room_;
};

}  // namespace onecopy::rpc
