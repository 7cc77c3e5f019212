// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_inbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace onecopy::transport {
namespace {

constexpr std::uint32_t kQuestion = UINT32_MAX;  // stands in place of a tag

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data()), tensor.layout().extent_bytes()};
}

}  // namespace

Bytes encode_first_piece(const Message& message) {
  Bytes out = encode_beginning(message);
  append_bytes(out, message.data);
  for (const Tensor& tensor : message.tensors)
    if (!is_sent_separately(tensor)) append_bytes(out, bytes_of(tensor));
  return out;
}

Bytes encode_question() { return encode_beginning({kQuestion, {}, {}}); }

void UcxInbox::begin(std::uint64_t number, ByteSpan first_piece, bool takes_cards) {
  if (number == 0 || has_begun(number) || given_out_.count(number) != 0)
    refuse_frame("begins a message again");
  const Beginning beginning = cut_beginning(first_piece);
  Incoming incoming;
  incoming.what.is_question = beginning.tag == kQuestion;
  incoming.is_in_order = incoming.what.is_question || (beginning.tag & kInOrder) != 0;
  Message& message = incoming.what.message;
  message.tag = beginning.tag;
  for (const Row& row : beginning.rows) {
    const bool is_separate = is_sent_separately(row.layout.extent_bytes());
    const ArrivingTensor& tensor = incoming.tensors.emplace_back(row, takes_cards && is_separate);
    message.tensors.push_back(tensor.tensor());
    incoming.apart.push_back(is_separate ? tensor.bytes() : 0);
    incoming.missing += incoming.apart.back();
  }
  const ByteSpan data = cut_bytes(first_piece, beginning.data_bytes);
  message.data.assign(data.begin(), data.end());
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    if (incoming.apart[i] != 0) continue;
    const auto into = bytes_of(message.tensors[i]);
    const ByteSpan bytes = cut_bytes(first_piece, into.size());
    if (!bytes.empty()) std::memcpy(into.data(), bytes.data(), bytes.size());
  }
  if (!first_piece.empty()) refuse_frame("has another length than its message");
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

}  // namespace onecopy::transport
