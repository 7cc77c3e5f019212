// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "onecopy/core/bytes.h"
#include "os/deadline.h"
#include "transport/fabric.h"
#include "transport/ucx/ucp.h"

namespace onecopy::transport {

/// A pipe over UCX. Each piece is an active message that goes by rendezvous, with its place in the stream of all bytes. The pipe has a
/// worker and connections of its own.
/// Thread safety: none.
class UcxPipe final : public FabricPipe {
 public:
  /// Throws unsupported without UCX, and system.
  explicit UcxPipe(int beside);
  ~UcxPipe() override { end(); }

  Bytes address() const override;
  void connect(ByteSpan address) override;
  void read_from(ByteSpan memory) override;
  std::uint32_t send(ByteSpan piece, std::chrono::milliseconds patience, std::uint32_t before) override;
  void flush(std::chrono::milliseconds patience) override { wait_for_room(patience, 1); }
  std::uint32_t receive(std::span<std::byte> into, std::chrono::milliseconds patience,
                        const std::function<void(std::size_t)>& filled) override;

 private:
  struct Head {
    std::uint64_t session, at;
  };
  struct Sending {
    UcxPipe& pipe;
    Head head;
  };
  struct Offer {
    Head head;
    void* data;
    std::size_t bytes;
  };
  struct Landing {
    UcxPipe& pipe;
    std::size_t bytes;
    bool is_here = false;
  };

  void end() noexcept;
  static ucx::ucs_status_t receive_head(void* pipe, const void* head, std::size_t head_bytes, void* data,
                                        std::size_t bytes, const ucx::ucp_am_recv_param_t* how);
  static void broken(void* pipe, ucx::ucp_ep_h endpoint, ucx::ucs_status_t status);
  static void sent(void* request, ucx::ucs_status_t status, void* sending);
  static void landed(void* request, ucx::ucs_status_t status, std::size_t bytes, void* landing);
  void take_offers(std::span<std::byte> into);
  void land(const Offer& offer, std::byte* into);
  std::uint32_t receive_all(std::span<std::byte> into, std::chrono::milliseconds patience,
                            const std::function<void(std::size_t)>& filled);
  void wait_for_room(std::chrono::milliseconds patience, int wanted);
  bool progress(Deadline until);

  const ucx::Library& library_;
  const int beside_, pid_;
  const std::uint64_t session_;
  std::uint64_t their_session_ = 0, sent_ = 0, received_ = 0;
  ucx::ucp_context_h context_ = nullptr;
  ucx::ucp_worker_h worker_ = nullptr;
  ucx::ucp_ep_h endpoint_ = nullptr;
  ucx::ucp_mem_h registered_ = nullptr;
  ByteSpan readable_;  ///< the memory that is registered
  int fd_ = -1, sending_ = 0, under_way_ = 0;
  bool has_failed_ = false;
  std::vector<Offer> offers_;
  std::map<std::uint64_t, Landing> landing_;  ///< by their places
};

}  // namespace onecopy::transport
