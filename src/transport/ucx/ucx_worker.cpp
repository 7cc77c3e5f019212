// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_worker.h"

#include <fmt/format.h>

#include <thread>
#include <utility>

#include "os/deadline.h"
#include "os/log.h"
#include "os/process.h"
#include "transport/ucx/ucx_channel.h"
#include "transport/ucx/ucx_context.h"

namespace onecopy::transport {
namespace {

using ucx::UCS_INPROGRESS;
using ucx::UCS_OK;
using ucx::ucs_status_t;

}  // namespace

UcxWorker::UcxWorker(EventLoop& loop, std::chrono::milliseconds peer_timeout)
    : loop_(loop), pid_(current_pid()), library_(ucx::Library::get()) {
  try {
    start(peer_timeout);
  } catch (...) {
    clear();
    throw;
  }
}

void UcxWorker::start(std::chrono::milliseconds peer_timeout) {
  context_ = ucx::make_context(library_, peer_timeout);
  ucx::ucp_context_attr_t can{};
  can.field_mask = ucx::UCP_ATTR_FIELD_MEMORY_TYPES;
  library_.must(library_.ucp_context_query(context_, &can), "ucp_context_query");
  takes_cards_ = (can.memory_types & (std::uint64_t{1} << ucx::UCS_MEMORY_TYPE_CUDA)) != 0;
  worker_ = ucx::make_worker(library_, context_, &UcxWorker::receive, this);
  address_ = ucx::address_of(library_, worker_);
  library_.must(library_.ucp_worker_get_efd(worker_, &fd_), "ucp_worker_get_efd");
  loop_.add(fd_, [this] { on_ready(); });
  wake();
}

int UcxWorker::memory_type(const Tensor& tensor) noexcept {
  return tensor.device().type == DeviceType::cuda ? ucx::UCS_MEMORY_TYPE_CUDA : ucx::UCS_MEMORY_TYPE_HOST;
}

bool UcxWorker::is_forked() const noexcept { return current_pid() != pid_; }

std::shared_ptr<FabricChannel> UcxWorker::make_channel() {
  return std::make_shared<UcxChannel>(shared_from_this());
}

/// Cancels all requests, which end within progress.
void UcxWorker::stop() noexcept {
  if (!worker_ || is_forked()) return;
  loop_.remove(fd_);
  constexpr std::chrono::seconds kTimeToCancel{1};
  const Deadline end = Deadline::after(kTimeToCancel);
  const LockGuard lock(using_);
  while (under_way_ != 0 && !end.has_passed())
    if (!progress()) std::this_thread::yield();
  clear();
}

void UcxWorker::clear() noexcept {
  if (worker_) library_.ucp_worker_destroy(std::exchange(worker_, nullptr));
  if (context_) library_.ucp_cleanup(std::exchange(context_, nullptr));
}

UcxChannel* UcxWorker::channel(std::uint64_t session) {
  const auto at = channels_.find(session);
  return at == channels_.end() ? nullptr : at->second;
}

/// Takes an active message. UCX calls it within progress().
ucs_status_t UcxWorker::receive(void* worker, const void* head, std::size_t head_bytes, void* data,
                                std::size_t bytes,
                                const ucx::ucp_am_recv_param_t* how) NO_THREAD_SAFETY_ANALYSIS {
  if (head_bytes != sizeof(UcxHead)) return UCS_OK;
  return static_cast<UcxWorker*>(worker)->take(load<UcxHead>(static_cast<const std::byte*>(head)), data,
                                               bytes, how->recv_attr);
}

/// Takes a message, or drops it if it belongs to no channel. UCX only offers tensors and large beginnings, which
/// land_offers() fetches.
ucs_status_t UcxWorker::take(const UcxHead& head, void* data, std::size_t bytes, std::uint64_t attributes) {
  UcxChannel* const to = channel(head.session);
  if (!to) return UCS_OK;
  if ((attributes & ucx::UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    offers_.push_back({head, data, bytes});
    return UCS_INPROGRESS;
  }
  if (head.piece == UcxHead::kAnswer) to->has_answer_ = true;
  else take_bytes(*to, head, {static_cast<const std::byte*>(data), bytes});
  return UCS_OK;
}

void UcxWorker::take_bytes(UcxChannel& to, const UcxHead& head, ByteSpan bytes) {
  to.worker_.using_.assert_held();
  try {
    if (head.piece != 0) refuse_frame("is a tensor that was not offered");
    to.inbox_.begin(head.number, bytes, to.takes_cards_);
  } catch (const std::exception& error) {
    log_warning(fmt::format("a message over UCX was refused: {}", error.what()));
    to.has_failed_ = true;
  }
}

bool UcxWorker::is_ready_for(UcxChannel& to, const UcxHead& head) {
  to.worker_.using_.assert_held();
  return head.piece == 0 || to.inbox_.has_begun(head.number);
}

/// Fetches the offered pieces whose message has begun. Returns whether there were any.
bool UcxWorker::land_offers() {
  bool found = false;
  for (const Offer& offer : std::exchange(offers_, {})) {
    UcxChannel* const to = channel(offer.head.session);
    if (to && !is_ready_for(*to, offer.head)) {
      offers_.push_back(offer);
      continue;
    }
    found = true;
    if (!to || !land(*to, offer)) library_.ucp_am_data_release(worker_, offer.data);
  }
  return found;
}

bool UcxWorker::land(UcxChannel& to, const Offer& offer) {
  to.worker_.using_.assert_held();
  auto landing = std::make_unique<Landing>(Landing{*this, offer.head, offer.bytes, {}, {}});
  try {
    if (offer.head.piece == 0) landing->bytes.resize(offer.bytes);
    else if (!to.inbox_.reserve(offer.head)) return offers_.push_back(offer), true;
    else landing->tensor = to.inbox_.room(offer.head, offer.bytes);
  } catch (const std::exception& error) {
    log_warning(fmt::format("a message over UCX was refused: {}", error.what()));
    to.has_failed_ = true;
    return false;
  }
  ucx::ucp_request_param_t params{};
  params.op_attr_mask = ucx::UCP_OP_ATTR_FIELD_CALLBACK | ucx::UCP_OP_ATTR_FIELD_USER_DATA |
                        ucx::UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.recv_am = &UcxWorker::landed;
  params.user_data = landing.get();
  params.memory_type = memory_type(landing->tensor);
  std::byte* const into =
      offer.head.piece == 0 ? landing->bytes.data() : landing->tensor.as<std::byte>() + offer.head.offset();
  void* const outcome = library_.ucp_am_recv_data_nbx(worker_, offer.data, into, offer.bytes, &params);
  if (outcome && !ucx::is_error(outcome)) {
    ++under_way_;
    static_cast<void>(landing.release());
  } else {
    take_landed(*landing, outcome ? ucx::status_of(outcome) : UCS_OK);
  }
  return true;
}

/// Records that a piece has arrived. UCX calls it within progress().
void UcxWorker::landed(void* request, ucs_status_t status, std::size_t,
                       void* user_data) NO_THREAD_SAFETY_ANALYSIS {
  const std::unique_ptr<Landing> landing(static_cast<Landing*>(user_data));
  UcxWorker& worker = landing->worker;
  --worker.under_way_;
  worker.library_.ucp_request_free(request);
  worker.take_landed(*landing, status);
}

void UcxWorker::take_landed(Landing& landing, ucs_status_t status) {
  UcxChannel* const to = channel(landing.head.session);
  if (!to) return;
  to->worker_.using_.assert_held();
  if (status < 0) to->has_failed_ = true;
  else if (landing.head.piece == 0) take_bytes(*to, landing.head, landing.bytes);
  else to->inbox_.fill(landing.head.number, landing.size);
}

void UcxWorker::drop_offers(std::uint64_t session) {
  std::erase_if(offers_, [&](const Offer& offer) {
    if (offer.head.session != session) return false;
    library_.ucp_am_data_release(worker_, offer.data);
    return true;
  });
}

bool UcxWorker::progress() {
  const bool has_moved = library_.ucp_worker_progress(worker_) != 0;
  return land_offers() || has_moved;
}

/// Returns true once UCX has nothing more to do and will report further work by its descriptor. Ends after a while, so
/// that messages are given out and other threads send.
bool UcxWorker::progress_for_a_while() {
  constexpr std::chrono::milliseconds kTurn{1};
  const Deadline end = Deadline::after(kTurn);
  do {
    if (!progress() && library_.ucp_worker_arm(worker_) != ucx::UCS_ERR_BUSY) return true;
  } while (!end.has_passed());
  return false;
}

void UcxWorker::on_ready() noexcept {
  struct Found {
    std::shared_ptr<UcxChannel> channel;
    std::vector<UcxInbox::Arrived> arrived;
  };
  std::vector<Found> found;
  try {
    {
      const LockGuard lock(using_);
      if (!worker_) return;
      if (!progress_for_a_while()) wake();
      for (const auto& [session, channel] : channels_) {
        channel->worker_.using_.assert_held();
        if (channel->endpoint_ &&
            (channel->inbox_.has_arrived() || channel->has_failed_ || channel->is_answered()))
          found.push_back({channel->weak_from_this().lock(), channel->inbox_.take()});
      }
    }
    if (senders_.load() != 0) std::this_thread::yield();  // else this thread takes the lock again first
    for (Found& one : found) {
      if (!one.channel) continue;
      one.channel->handle(std::move(one.arrived));
      if (one.channel->has_failed_) one.channel->fail();
    }
  } catch (const std::exception& error) {
    log_warning(fmt::format("messages over UCX were lost: {}", error.what()));
    for (Found& one : found)
      if (one.channel) one.channel->fail();
  }
}

}  // namespace onecopy::transport
