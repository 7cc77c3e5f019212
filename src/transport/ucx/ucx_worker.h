// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <vector>

#include "os/event_loop.h"
#include "os/mutex.h"
#include "transport/fabric.h"
#include "transport/ucx/ucp.h"
#include "transport/ucx/ucx_inbox.h"

namespace onecopy::transport {

class UcxChannel;

/// The UCX context and worker of this process: the channels send through it, and it receives for all of them.
///
/// Thread safety: all members may be called concurrently. One thread at a time uses the worker: the one that sends, or the
/// event loop's, which alone makes progress. Invariant: the functions of a closed channel are not called.
class UcxWorker final : public Fabric, public std::enable_shared_from_this<UcxWorker> {
 public:
  /// Throws unsupported without UCX, and system.
  UcxWorker(EventLoop& loop, std::chrono::milliseconds peer_timeout);
  ~UcxWorker() override { stop(); }

  std::shared_ptr<FabricChannel> make_channel() override;
  /// Returns the address that others connect to.
  const Bytes& address() const noexcept { return address_; }
  /// Returns whether UCX reads and writes memory of CUDA devices.
  bool takes_cards() const noexcept { return takes_cards_; }
  /// Returns UCX's name for the type of memory that contains the tensor.
  static int memory_type(const Tensor& tensor) noexcept;
  void stop() noexcept override;
  /// Returns whether this process is a forked child, which must not touch the worker.
  bool is_forked() const noexcept;
  /// Receives, and continues what is being sent. The loop's thread calls it.
  void on_ready() noexcept;
  /// Makes the loop call on_ready() soon.
  void wake() noexcept override { library_.ucp_worker_signal(worker_); }

 private:
  friend class UcxChannel;

  /// A piece of a message that is being fetched into memory of this process.
  struct Landing {
    UcxWorker& worker;
    const UcxHead head;
    const std::size_t size;
    Bytes bytes;    ///< of a beginning
    Tensor tensor;  ///< else
  };
  struct Offer {
    UcxHead head;
    void* data;
    std::size_t bytes;
  };

  void start(std::chrono::milliseconds peer_timeout);
  void clear() noexcept;
  static ucx::ucs_status_t receive(void* worker, const void* head, std::size_t head_bytes, void* data,
                                   std::size_t bytes, const ucx::ucp_am_recv_param_t* how);
  ucx::ucs_status_t take(const UcxHead& head, void* data, std::size_t bytes, std::uint64_t attributes)
      REQUIRES(using_);
  void take_bytes(UcxChannel& to, const UcxHead& head, ByteSpan bytes) REQUIRES(using_);
  bool land_offers() REQUIRES(using_);
  static bool is_ready_for(UcxChannel& to, const UcxHead& head);
  bool land(UcxChannel& to, const Offer& offer) REQUIRES(using_);
  void drop_offers(std::uint64_t session) REQUIRES(using_);
  void take_landed(Landing& landing, ucx::ucs_status_t status) REQUIRES(using_);
  static void landed(void* request, ucx::ucs_status_t status, std::size_t bytes, void* landing);
  UcxChannel* channel(std::uint64_t session) REQUIRES(using_);
  bool progress() REQUIRES(using_);
  bool progress_for_a_while() REQUIRES(using_);

  EventLoop& loop_;
  const int pid_;
  const ucx::Library& library_;
  Mutex using_;
  ucx::ucp_context_h context_ = nullptr;
  ucx::ucp_worker_h worker_ = nullptr;
  int fd_ = -1;
  bool takes_cards_ = false;
  Bytes address_;
  std::map<std::uint64_t, UcxChannel*> channels_ GUARDED_BY(using_);
  std::vector<Offer> offers_ GUARDED_BY(using_);
  std::atomic<int> under_way_{0};  ///< requests of UCX
  std::atomic<int> senders_{0};    ///< threads that wait for the worker
};

}  // namespace onecopy::transport
