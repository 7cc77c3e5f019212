// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/tls/tls_link.h"

namespace onecopy::transport {

std::span<std::byte> Inbox::left() noexcept {
  return (has_head_ ? payload_ : std::as_writable_bytes(std::span(&head_, 1))).subspan(got_);
}

std::span<std::byte> Inbox::room() noexcept {
  is_in_place_ = left().size() >= small_.size();
  return is_in_place_ ? left() : small_;
}

void Inbox::take(std::size_t bytes, Arrived& arrived) {
  if (is_in_place_) return advance(bytes, arrived);
  for (ByteSpan rest(small_.data(), bytes); !rest.empty();) {
    const ByteSpan part = cut_bytes(rest, std::min(rest.size(), left().size()));
    std::memcpy(left().data(), part.data(), part.size());
    advance(part.size(), arrived);
  }
}

void Inbox::advance(std::size_t bytes, Arrived& arrived) {
  got_ += bytes;
  if (!left().empty()) return;
  got_ = 0;
  if (!std::exchange(has_head_, true)) begin_frame();
  else end_frame(arrived);
  if (has_head_ && payload_.empty()) end_frame(arrived);
}

void Inbox::begin_frame() {
  check_head(head_);
  if (!has_hello_ && head_.kind != FrameKind::hello)
    refuse_frame("came before its sender said which member it is");
  if (head_.kind == FrameKind::more) {
    payload_ = assembly_.room(head_.bytes);
    return;
  }
  buffer_.resize(head_.bytes);
  payload_ = buffer_;
}

void Inbox::end_frame(Arrived& arrived) {
  has_head_ = false;
  switch (head_.kind) {
    case FrameKind::hello:
      if (std::exchange(has_hello_, true)) refuse_frame("names its sender again");
      arrived.hello = buffer_;
      return;
    case FrameKind::fabric: arrived.fabric = buffer_; return;
    case FrameKind::heartbeat: return;
    case FrameKind::message: assembly_.begin(payload_); break;
    case FrameKind::more: assembly_.fill(payload_.size()); break;
    case FrameKind::withdrawn: assembly_.withdraw(); break;
    case FrameKind::whole:
      whole_.begin(payload_);
      if (!whole_.is_whole()) refuse_frame("is of a message that is not whole");
      return take_message(whole_, arrived);
  }
  if (assembly_.is_whole()) take_message(assembly_, arrived);
}

void Inbox::take_message(Assembly& assembly, Arrived& arrived) {
  if (auto message = assembly.take()) arrived.messages.push_back(*std::move(message));
}

}  // namespace onecopy::transport
