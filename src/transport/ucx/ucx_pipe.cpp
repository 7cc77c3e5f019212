// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_pipe.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <memory>
#include <thread>
#include <utility>

#include "core/throw_error.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/process.h"
#include "os/random.h"
#include "transport/ucx/ucx_context.h"
#include "transport/wire.h"

namespace onecopy::transport {
namespace {

using ucx::Library;

constexpr std::chrono::milliseconds kPeerTimeout{10'000};
constexpr int kUnderWay = 4;  ///< pieces that are sent at the same time

}  // namespace

UcxPipe::UcxPipe(int beside)
    : library_(Library::get()),
      beside_(beside),
      pid_(current_pid()),
      session_(random_value<std::uint64_t>()) {
  try {
    context_ = ucx::make_context(library_, kPeerTimeout);
    worker_ = ucx::make_worker(library_, context_, &UcxPipe::receive_head, this);
    library_.must(library_.ucp_worker_get_efd(worker_, &fd_), "ucp_worker_get_efd");
  } catch (...) {
    end();
    throw;
  }
}

Bytes UcxPipe::address() const {
  Bytes out(sizeof session_);
  write_value(out.data(), session_);
  append_bytes(out, ucx::address_of(library_, worker_));
  return out;
}

void UcxPipe::connect(ByteSpan address) {
  their_session_ = load<std::uint64_t>(cut_bytes(address, sizeof their_session_).data());
  if (address.empty()) refuse_frame("has no address for UCX");
  endpoint_ = ucx::connect(library_, worker_, address, {&UcxPipe::broken, this});
}

/// Cancels all requests, which end within progress.
void UcxPipe::end() noexcept {
  constexpr std::chrono::seconds kTimeToCancel{1};
  if (current_pid() != pid_) return;  // a forked child, which must not touch the worker
  has_failed_ = true;
  if (endpoint_) ucx::close(library_, std::exchange(endpoint_, nullptr));
  const Deadline end = Deadline::after(kTimeToCancel);
  while (under_way_ != 0 && !end.has_passed())
    if (library_.ucp_worker_progress(worker_) == 0) std::this_thread::yield();
  for (const Offer& offer : std::exchange(offers_, {})) library_.ucp_am_data_release(worker_, offer.data);
  if (registered_) library_.ucp_mem_unmap(context_, std::exchange(registered_, nullptr));
  if (worker_) library_.ucp_worker_destroy(std::exchange(worker_, nullptr));
  if (context_) library_.ucp_cleanup(std::exchange(context_, nullptr));
}

void UcxPipe::read_from(ByteSpan memory) {
  if (memory.data() == readable_.data() && memory.size() == readable_.size()) return;
  if (registered_) library_.ucp_mem_unmap(context_, std::exchange(registered_, nullptr));
  readable_ = memory;
  if (memory.empty()) return;
  ucx::ucp_mem_map_params_t params{};
  params.field_mask = ucx::UCP_MEM_MAP_PARAM_FIELD_ADDRESS | ucx::UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      ucx::UCP_MEM_MAP_PARAM_FIELD_PROT;
  params.address = const_cast<std::byte*>(memory.data());
  params.length = memory.size();
  params.prot = ucx::UCP_MEM_MAP_PROT_LOCAL_READ | ucx::UCP_MEM_MAP_PROT_REMOTE_READ;
  library_.must(library_.ucp_mem_map(context_, &params, &registered_), "ucp_mem_map");
}

std::uint32_t UcxPipe::send(ByteSpan piece, std::chrono::milliseconds patience, std::uint32_t before) {
  const std::uint32_t crc = crc32c(piece, before);
  wait_for_room(patience, kUnderWay);
  auto sending = std::make_unique<Sending>(Sending{*this, {their_session_, sent_}});
  sent_ += piece.size();
  ucx::ucp_request_param_t params{};
  params.op_attr_mask = ucx::UCP_OP_ATTR_FIELD_CALLBACK | ucx::UCP_OP_ATTR_FIELD_USER_DATA |
                        ucx::UCP_OP_ATTR_FIELD_FLAGS | ucx::UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.send = &UcxPipe::sent;
  params.user_data = sending.get();
  params.flags = ucx::UCP_AM_SEND_FLAG_RNDV;
  params.memory_type = ucx::UCS_MEMORY_TYPE_HOST;
  if (registered_ && piece.data() >= readable_.data() &&
      piece.data() + piece.size() <= readable_.data() + readable_.size()) {
    params.op_attr_mask |= ucx::UCP_OP_ATTR_FIELD_MEMH;
    params.memh = registered_;
  }
  void* const outcome = library_.ucp_am_send_nbx(endpoint_, 0, &sending->head, sizeof sending->head,
                                                 piece.data(), piece.size(), &params);
  if (ucx::is_error(outcome)) {
    has_failed_ = true;
  } else if (outcome) {
    ++sending_;
    ++under_way_;
    static_cast<void>(sending.release());
  }
  return crc;
}

/// Notes that a piece was sent. UCX calls it within its progress.
void UcxPipe::sent(void* request, ucx::ucs_status_t status, void* sending) {
  const std::unique_ptr<Sending> ended(static_cast<Sending*>(sending));
  --ended->pipe.sending_;
  --ended->pipe.under_way_;
  if (status < 0) ended->pipe.has_failed_ = true;
  Library::get().ucp_request_free(request);
}

void UcxPipe::broken(void* pipe, ucx::ucp_ep_h, ucx::ucs_status_t status) {
  log_debug(fmt::format("a connection over UCX has ended: {}", Library::get().ucs_status_string(status)));
  static_cast<UcxPipe*>(pipe)->has_failed_ = true;
}

/// Waits until fewer than `wanted` pieces are being sent.
void UcxPipe::wait_for_room(std::chrono::milliseconds patience, int wanted) {
  Deadline until = Deadline::after(patience);
  while (sending_ >= wanted || has_failed_)
    if (progress(until)) until = Deadline::after(patience);
}

/// Returns whether something has happened. Waits for it until the deadline.
bool UcxPipe::progress(Deadline until) {
  if (has_failed_) throw_error(ErrorCode::peer_died, "the connection to another host over UCX has ended");
  if (library_.ucp_worker_progress(worker_) != 0) return true;
  if (library_.ucp_worker_arm(worker_) == ucx::UCS_ERR_BUSY) return false;
  if (until.has_passed())
    throw_error(ErrorCode::timeout, "the other host has sent or taken nothing over UCX in time");
  std::array<pollfd, 2> on{{{fd_, POLLIN, 0}, {beside_, POLLRDHUP, 0}}};
  constexpr std::chrono::milliseconds kSlice{1'000};
  ::poll(on.data(), on.size(), static_cast<int>(until.whole_ms_left(kSlice).count()));
  if (on[1].revents != 0) throw_error(ErrorCode::peer_died, "the other host has closed the connection");
  return false;
}

/// Notes a piece that the other side offers. UCX calls it within its progress.
ucx::ucs_status_t UcxPipe::receive_head(void* pipe, const void* head, std::size_t head_bytes, void* data,
                                        std::size_t bytes, const ucx::ucp_am_recv_param_t* how) {
  UcxPipe& to = *static_cast<UcxPipe*>(pipe);
  if (head_bytes != sizeof(Head) || (how->recv_attr & ucx::UCP_AM_RECV_ATTR_FLAG_RNDV) == 0)
    return ucx::UCS_OK;
  const Head found = load<Head>(static_cast<const std::byte*>(head));
  if (found.session != to.session_ || bytes == 0 || bytes > kMaxPiece || to.has_failed_) return ucx::UCS_OK;
  to.offers_.push_back({found, data, bytes});
  return ucx::UCS_INPROGRESS;
}

void UcxPipe::landed(void* request, ucx::ucs_status_t status, std::size_t, void* landing) {
  Landing& piece = *static_cast<Landing*>(landing);
  piece.is_here = status >= 0;
  if (status < 0) piece.pipe.has_failed_ = true;
  --piece.pipe.under_way_;
  Library::get().ucp_request_free(request);
}

void UcxPipe::land(const Offer& offer, std::byte* into) {
  const auto [at, is_new] = landing_.try_emplace(offer.head.at, Landing{*this, offer.bytes});
  ucx::ucp_request_param_t params{};
  params.op_attr_mask = ucx::UCP_OP_ATTR_FIELD_CALLBACK | ucx::UCP_OP_ATTR_FIELD_USER_DATA |
                        ucx::UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.recv_am = &UcxPipe::landed;
  params.user_data = &at->second;
  params.memory_type = ucx::UCS_MEMORY_TYPE_HOST;
  void* const outcome =
      is_new ? library_.ucp_am_recv_data_nbx(worker_, offer.data, into, offer.bytes, &params) : nullptr;
  if (!is_new) library_.ucp_am_data_release(worker_, offer.data);
  if (!is_new || ucx::is_error(outcome)) has_failed_ = true;
  else if (outcome) ++under_way_;
  else at->second.is_here = true;
}

/// Fetches the offered pieces that belong into the memory, which begins with the first byte that is missing.
void UcxPipe::take_offers(std::span<std::byte> into) {
  for (const Offer& offer : std::exchange(offers_, {})) {
    const std::uint64_t at = offer.head.at - received_;
    if (at >= into.size() && offer.head.at >= received_) {
      offers_.push_back(offer);
    } else if (offer.head.at < received_ || offer.bytes > into.size() - at) {
      library_.ucp_am_data_release(worker_, offer.data);
      refuse_frame("is of bytes that were not asked for");
    } else {
      land(offer, into.data() + at);
    }
  }
}

std::uint32_t UcxPipe::receive_all(std::span<std::byte> into, std::chrono::milliseconds patience,
                                   const std::function<void(std::size_t)>& filled) {
  std::uint32_t crc = 0;
  std::size_t here = 0;
  for (Deadline until = Deadline::after(patience); here < into.size();) {
    take_offers(into);
    const auto next = landing_.find(received_ + here);
    if (next != landing_.end() && next->second.is_here) {
      crc = crc32c(into.subspan(here, next->second.bytes), crc);
      here += next->second.bytes;
      landing_.erase(next);
      filled(here);
      until = Deadline::after(patience);
    } else if (progress(until)) {
      until = Deadline::after(patience);
    }
  }
  received_ += into.size();
  return crc;
}

std::uint32_t UcxPipe::receive(std::span<std::byte> into, std::chrono::milliseconds patience,
                               const std::function<void(std::size_t)>& filled) {
  try {
    return receive_all(into, patience, filled);
  } catch (...) {
    end();  // so that no piece arrives in memory that is used otherwise
    throw;
  }
}

}  // namespace onecopy::transport
