// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "onecopy/device/stream.h"
#include "os/deadline.h"
#include "os/mutex.h"
#include "transport/fabric.h"
#include "transport/send_window.h"
#include "transport/ucx/ucx_worker.h"

namespace onecopy::transport {

/// A channel for messages between this process and another one over UCX, in both directions. Each side gives the
/// channel a random number, by which the messages to that side name the channel. The numbers and the addresses of the
/// workers are exchanged over TLS.
///
/// A message goes as active messages: its beginning, and each part of a large tensor, by rendezvous, into memory that the
/// receiver has reserved. UCX reads a tensor while sending it, so the tensor stays claimed until it is sent, and what is
/// written into the tensor before that may or may not arrive.
///
/// Thread safety: as FabricChannel.
class UcxChannel final : public FabricChannel, public std::enable_shared_from_this<UcxChannel> {
 public:
  explicit UcxChannel(std::shared_ptr<UcxWorker> worker);
  ~UcxChannel() override { close(); }

  Bytes address() const override;
  void connect(ByteSpan address, Handlers handlers) override;
  void put(Message message, Stream stream, Deadline deadline) override;
  bool takes_cards() const noexcept override { return takes_cards_.load(); }
  void ask() override;
  bool has_arrived() const noexcept override { return has_answer_.load() || is_over_.load(); }
  void take_rest() noexcept override { worker_.on_ready(); }
  void close() noexcept override;

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
  SendWindow window_;
};

}  // namespace onecopy::transport
