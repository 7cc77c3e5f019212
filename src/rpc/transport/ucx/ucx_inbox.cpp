// SPDX-License-Identifier: Apache-2.0
#include "rpc/transport/ucx/ucx_inbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "rpc/message.h"

namespace onecopy::rpc {
namespace {

/// The place of a tensor's bytes, written after its layout: 1 for a message of their own, 0 for the beginning.
using Place = std::uint32_t;

/// The max bytes of a tensor that is sent within the beginning of its message.
constexpr std::uint64_t kMaxInBeginning = 8 << 10;
constexpr std::uint32_t kQuestion = UINT32_MAX;  // stands in place of a tag

bool is_in_order(std::uint32_t tag) noexcept {
  return (tag & kInOrder) != 0 || (tag & kFormBits) == static_cast<std::uint32_t>(Form::note);
}

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data()), tensor.layout().extent_bytes()};
}

}  // namespace

Bytes encode_beginning(const Message& message, std::vector<std::uint32_t>& apart) {
  Bytes out;
  const ParcelHead head{message.tag, static_cast<std::uint32_t>(message.tensors.size()),
                        message.data.size()};
  append_bytes(out, std::as_bytes(std::span(&head, 1)));
  std::vector<ByteSpan> within{message.data};
  for (std::uint32_t i = 0; i < message.tensors.size(); ++i) {
    const Tensor& tensor = message.tensors[i];
    append_layout(out, tensor.layout());
    const std::uint64_t bytes = tensor.layout().extent_bytes();
    const Place is_apart = bytes > kMaxInBeginning ? 1 : 0;
    append_bytes(out, std::as_bytes(std::span(&is_apart, 1)));
    if (is_apart != 0) apart.push_back(i);
    else within.emplace_back(bytes_of(tensor));
  }
  for (const ByteSpan bytes : within) append_bytes(out, bytes);
  return out;
}

Bytes encode_question() {
  Bytes out(sizeof(ParcelHead));
  write_value(out.data(), ParcelHead{kQuestion, 0, 0});
  return out;
}

void UcxInbox::begin(std::uint64_t number, ByteSpan beginning) {
  if (number == 0 || has_begun(number) || given_out_.count(number) != 0)
    refuse_frame("begins a message again");
  const ParcelHead head = cut_head(beginning);
  Incoming incoming;
  incoming.what.is_question = head.tag == kQuestion;
  incoming.is_in_order = incoming.what.is_question || is_in_order(head.tag);
  Message& message = incoming.what.message;
  message.tag = head.tag;
  std::uint64_t all = head.data_bytes;
  for (std::uint32_t i = 0; i < head.tensors; ++i) {
    const Layout layout = cut_layout(beginning);
    const auto is_apart = load<Place>(cut_bytes(beginning, sizeof(Place)).data());
    all += std::min(layout.extent_bytes(), kMaxMessageBytes);
    if (all > kMaxMessageBytes) refuse_frame("is of too large a message");
    const ArrivingTensor& tensor = incoming.tensors.emplace_back(layout);
    message.tensors.push_back(tensor.tensor());
    incoming.apart.push_back(is_apart != 0 ? tensor.bytes() : 0);
    incoming.missing += incoming.apart.back();
  }
  const ByteSpan data = cut_bytes(beginning, head.data_bytes);
  message.data.assign(data.begin(), data.end());
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    if (incoming.apart[i] != 0) continue;
    const auto into = bytes_of(message.tensors[i]);
    const ByteSpan bytes = cut_bytes(beginning, into.size());
    if (!bytes.empty()) std::memcpy(into.data(), bytes.data(), bytes.size());
  }
  if (!beginning.empty()) refuse_frame("has another length than its message");
  if (incoming.missing == 0) complete(number, std::move(incoming));
  else incoming_.emplace(number, std::move(incoming));
}

bool UcxInbox::reserve(const UcxHead& head) {
  const auto at = incoming_.find(head.number);
  if (at == incoming_.end() || head.piece == 0 || head.piece > at->second.tensors.size()) return true;
  ArrivingTensor& tensor = at->second.tensors[head.piece - 1];
  return tensor.reserve(std::min(tensor.bytes(), head.offset() + UcxHead::kPartBytes));
}

Tensor UcxInbox::room(const UcxHead& head, std::uint64_t bytes) {
  const auto at = incoming_.find(head.number);
  if (at == incoming_.end() || head.piece == 0 || head.piece > at->second.apart.size())
    refuse_frame("has bytes of no message");
  const ArrivingTensor& tensor = at->second.tensors[head.piece - 1];
  std::uint64_t& left = at->second.apart[head.piece - 1];
  if (bytes == 0 || bytes > left || head.offset() >= tensor.bytes() ||
      bytes != std::min(tensor.bytes() - head.offset(), UcxHead::kPartBytes))
    refuse_frame("has bytes of no message");
  left -= bytes;
  return tensor.tensor();
}

void UcxInbox::fill(std::uint64_t number, std::uint64_t bytes) {
  const auto at = incoming_.find(number);
  if (at == incoming_.end() || (at->second.missing -= bytes) != 0) return;
  Incoming whole = std::move(at->second);
  incoming_.erase(at);
  complete(number, std::move(whole));
}

void UcxInbox::complete(std::uint64_t number, Incoming&& incoming) {
  if (number != next_) {
    if (incoming.is_in_order) return static_cast<void>(incoming_.emplace(number, std::move(incoming)));
    given_out_.insert(number);
    return give_out(std::move(incoming));
  }
  give_out(std::move(incoming));
  for (++next_;; ++next_) {
    if (given_out_.erase(next_) != 0) continue;
    const auto at = incoming_.find(next_);
    if (at == incoming_.end() || at->second.missing != 0) return;
    give_out(std::move(at->second));
    incoming_.erase(at);
  }
}

void UcxInbox::give_out(Incoming&& incoming) {
  if (!incoming.what.is_question) to_deadline(incoming.what.message);
  arrived_.push_back(std::move(incoming.what));
}

}  // namespace onecopy::rpc
