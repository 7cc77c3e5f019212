// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/random.h"
#include "transport/ucx/ucx_context.h"

namespace onecopy::transport {
namespace {

using ucx::Library;

std::uint64_t random_number() {
  std::uint64_t number = 0;
  random_bytes(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

}  // namespace

/// An active message that is being sent.
struct UcxChannel::Sending {
  std::shared_ptr<UcxChannel> channel;
  UcxHead head;
  Bytes bytes;
  Tensor tensor;  ///< sent instead of `bytes`
  bool is_small = false;

  bool is_part() const { return bytes.empty(); }
  const void* data() const { return is_part() ? tensor.as<std::byte>() + head.offset() : bytes.data(); }
  std::size_t size() const {
    if (!is_part()) return bytes.size();
    return std::min(tensor.layout().extent_bytes() - head.offset(), UcxHead::kPartBytes);
  }
};

UcxChannel::UcxChannel(std::shared_ptr<UcxWorker> worker)
    : kept_(std::move(worker)), worker_(*kept_), session_(random_number()) {
  const LockGuard lock(worker_.using_);
  worker_.channels_[session_] = this;
}

Bytes UcxChannel::address() const {
  Bytes out(sizeof session_);
  write_value(out.data(), session_);
  append_bytes(out, worker_.address());
  return out;
}

void UcxChannel::connect(ByteSpan address, Handlers handlers) {
  handlers_ = std::move(handlers);
  const LockGuard lock(worker_.using_);
  if (endpoint_) refuse_frame("connects a second time");
  their_session_ = load<std::uint64_t>(cut_bytes(address, sizeof their_session_).data());
  if (address.empty()) refuse_frame("has no address for UCX");
  endpoint_ = ucx::connect(worker_.library_, worker_.worker_, address, {&UcxChannel::broken, this});
  takes_cards_ = worker_.takes_cards() && has_lane_for_cards();
  worker_.wake();
}

/// Returns whether UCX has chosen a transport other than TCP. Over TCP, UCX copies memory of cards in small parts at a
/// fifteenth of the speed of a copy to the host.
bool UcxChannel::has_lane_for_cards() {
  std::array<ucx::ucp_transport_entry_t, 32> lanes{};
  ucx::ucp_ep_attr_t attributes{};
  attributes.field_mask = ucx::UCP_EP_ATTR_FIELD_TRANSPORTS;
  attributes.transports = {lanes.data(), lanes.size(), sizeof lanes[0]};
  if (worker_.library_.ucp_ep_query(endpoint_, &attributes) < 0) return false;
  const auto known = std::span(lanes).first(attributes.transports.num_entries);
  return std::ranges::any_of(known, [](const ucx::ucp_transport_entry_t& lane) {
    const std::string_view name = lane.transport_name;
    log_debug(fmt::format("a connection over UCX uses {}/{}", name, lane.device_name));
    return name != "tcp" && name != "cuda_copy";
  });
}

void UcxChannel::put(Message message, Stream stream, Deadline deadline) {
  constexpr auto is_separate = [](const Tensor& tensor) { return is_sent_separately(tensor); };
  const Message sent = outgoing(std::move(message), stream, takes_cards_ ? +is_separate : nullptr);
  Bytes first_piece = encode_first_piece(sent);
  const bool is_small =
      first_piece.size() <= kMaxSmallBytes && std::ranges::none_of(sent.tensors, is_separate);
  const auto has_room = [&] {
    return under_way(is_small).load() < SendWindow::kMaxBytes || is_over_.load();
  };
  if (!window_.wait(has_room, deadline)) throw_no_room();
  post_all(std::move(first_piece), sent.tensors, is_small);
}

bool UcxChannel::post_all(Bytes&& first_piece, const std::vector<Tensor>& tensors, bool is_small) {
  {
    worker_.senders_.fetch_add(1);
    const LockGuard lock(worker_.using_);
    worker_.senders_.fetch_sub(1);
    if (is_over_ || !endpoint_) return false;
    const UcxHead head{their_session_, ++sent_, 0, 0};
    post(
        std::make_unique<Sending>(Sending{shared_from_this(), head, std::move(first_piece), {}, is_small}));
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      if (!is_sent_separately(tensors[i])) continue;
      large_ += tensors[i].layout().extent_bytes();
      unsent_.push_back({{their_session_, sent_, i + 1, 0}, tensors[i]});
    }
    post_parts();
  }
  if (has_failed_) fail();
  return true;
}

/// Gives UCX a few parts of tensors, and each further part when one has been sent: small messages go in between.
void UcxChannel::post_parts() {
  constexpr int kPartsUnderWay = 4;
  while (parts_under_way_ < kPartsUnderWay && !unsent_.empty() && !has_failed_ && endpoint_) {
    auto& [next_part, tensor] = unsent_.front();
    auto part = std::make_unique<Sending>(Sending{shared_from_this(), next_part, {}, tensor, false});
    ++next_part.part;
    if (next_part.offset() >= tensor.layout().extent_bytes()) unsent_.pop_front();
    ++parts_under_way_;
    post(std::move(part));
  }
}

/// Starts an operation, which ends at once, continues in the background, or fails.
void UcxChannel::post(std::unique_ptr<Sending> sending) {
  if (has_failed_) return;
  if (!sending->is_part()) under_way(sending->is_small) += sending->size();
  ucx::ucp_request_param_t params{};
  params.op_attr_mask = ucx::UCP_OP_ATTR_FIELD_CALLBACK | ucx::UCP_OP_ATTR_FIELD_USER_DATA |
                        ucx::UCP_OP_ATTR_FIELD_FLAGS | ucx::UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.send = &UcxChannel::sent;
  params.user_data = sending.get();
  params.flags = sending->is_part() ? ucx::UCP_AM_SEND_FLAG_RNDV : 0;
  params.memory_type = UcxWorker::memory_type(sending->tensor);
  void* const outcome = worker_.library_.ucp_am_send_nbx(endpoint_, 0, &sending->head, sizeof sending->head,
                                                         sending->data(), sending->size(), &params);
  if (outcome && !ucx::is_error(outcome)) {
    ++worker_.under_way_;
    worker_.wake();
    return static_cast<void>(sending.release());
  }
  if (outcome) has_failed_ = true;
  finish(*sending);
}

void UcxChannel::finish(Sending& sending) noexcept {
  UcxChannel& channel = *sending.channel;
  channel.worker_.using_.assert_held();
  channel.parts_under_way_ -= sending.is_part() ? 1 : 0;
  channel.under_way(sending.is_small) -= sending.size();
  channel.window_.tell_waiters();
}

void UcxChannel::sent(void* request, ucx::ucs_status_t status, void* sending) NO_THREAD_SAFETY_ANALYSIS {
  const std::unique_ptr<Sending> ended(static_cast<Sending*>(sending));
  --ended->channel->worker_.under_way_;
  finish(*ended);
  if (status < 0) ended->channel->has_failed_ = true;  // nothing may be sent while UCX ends the endpoint
  ended->channel->post_parts();
  Library::get().ucp_request_free(request);
}

/// Records a failure. UCX calls it within its progress.
void UcxChannel::broken(void* channel, ucx::ucp_ep_h, ucx::ucs_status_t status) {
  log_debug(fmt::format("a connection over UCX has ended: {}", Library::get().ucs_status_string(status)));
  static_cast<UcxChannel*>(channel)->has_failed_ = true;
}

void UcxChannel::ask() {
  has_answer_ = false;
  if (!post_all(encode_question(), {}, true)) has_answer_ = true;
}

void UcxChannel::handle(std::vector<UcxInbox::Arrived>&& arrived) {
  if (is_answered()) std::exchange(handlers_.opened, nullptr)();
  for (UcxInbox::Arrived& one : arrived) {
    if (!one.is_question) {
      handlers_.deliver(std::move(one.message));
      continue;
    }
    const LockGuard lock(worker_.using_);
    if (is_over_ || !endpoint_) return;
    const UcxHead answer{their_session_, 0, UcxHead::kAnswer, 0};
    post(std::make_unique<Sending>(Sending{shared_from_this(), answer, Bytes(1), {}, true}));
  }
}

void UcxChannel::fail() noexcept {
  if (!is_over_.exchange(true) && handlers_.failed) handlers_.failed();
  window_.tell_waiters();
}

void UcxChannel::close() noexcept {
  is_over_ = true;
  // The last operation that ends may destroy a closed channel, within UCX's progress, while the worker is in use.
  if (is_closed_.exchange(true) || worker_.is_forked()) return;
  {
    const LockGuard lock(worker_.using_);
    worker_.channels_.erase(session_);
    worker_.drop_offers(session_);
    unsent_.clear();
    if (endpoint_) ucx::close(worker_.library_, std::exchange(endpoint_, nullptr));
    worker_.wake();
  }
  window_.tell_waiters();
}

}  // namespace onecopy::transport
