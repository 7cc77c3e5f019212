// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/parcel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "onecopy/core/error.h"
#include "os/log.h"

namespace onecopy::transport {

void check_head(const FrameHead& head) {
  if (head.kind < FrameKind::hello || head.kind > FrameKind::fabric) refuse_frame("is of no known kind");
  if (head.bytes > kMaxFrameBytes) refuse_frame("is too long");
  const bool is_plain = head.kind == FrameKind::heartbeat || head.kind == FrameKind::withdrawn;
  if (is_plain != (head.bytes == 0)) refuse_frame("has another length than its kind");
}

// --- Parcel

Parcel::Parcel(Message&& message) : message_(std::move(message)), first_(encode_beginning(message_)) {
  parts_.emplace_back(message_.data);
  for (const Tensor& tensor : message_.tensors)
    parts_.emplace_back(tensor.as<const std::byte>(), tensor.layout().extent_bytes());
  borrowed_ = parts_.size();
  if (first_.size() > kMaxFrameBytes)
    throw Error(ErrorCode::invalid_argument,
                "the shapes of a message's tensors do not go to another host: they take too many bytes");
  bytes_ = first_.size();
  for (const ByteSpan part : parts_) bytes_ += part.size();
  if (bytes_ > kMaxSmallBytes) return;
  for (const ByteSpan part : parts_) append_bytes(first_, part);
  parts_.clear();
  borrowed_ = 0;
  message_ = {};
}

std::optional<Parcel::Part> Parcel::next(std::size_t max_bytes) {
  if (is_withdrawn_) {
    if (!is_begun_ || std::exchange(has_ended_, true)) return {};
    return Part{FrameKind::withdrawn, {}};
  }
  if (!is_begun_) {
    is_begun_ = true;
    given_ = first_.size();
    return Part{is_whole() ? FrameKind::whole : FrameKind::message, first_};
  }
  while (part_ < parts_.size() && at_ == parts_[part_].size()) {
    ++part_;
    at_ = 0;
  }
  if (part_ == parts_.size()) return {};
  const ByteSpan bytes = parts_[part_].subspan(at_, std::min(parts_[part_].size() - at_, max_bytes));
  at_ += bytes.size();
  given_ += bytes.size();
  return Part{FrameKind::more, bytes};
}

/// Copies from the end on, since next() comes from the beginning.
bool Parcel::keep(std::size_t max_bytes) {
  while (borrowed_ > std::max<std::size_t>(part_, 1)) {
    const std::size_t last = borrowed_ - 1;
    const ByteSpan rest = parts_[last].subspan(last == part_ ? at_ : 0);
    const ByteSpan end = rest.last(std::min(rest.size(), max_bytes));
    if (end.empty() && !rest.empty()) return false;
    auto copy = std::make_unique_for_overwrite<std::byte[]>(end.size());
    std::copy(end.begin(), end.end(), copy.get());
    const ByteSpan kept(copy.get(), end.size());
    kept_.push_back(std::move(copy));
    max_bytes -= end.size();
    if (end.size() == parts_[last].size()) {
      parts_[last] = kept;
      borrowed_ = last;
    } else {
      parts_.insert(parts_.begin() + static_cast<std::ptrdiff_t>(borrowed_), kept);
      parts_[last] = parts_[last].first(parts_[last].size() - end.size());
      if (end.size() == rest.size()) borrowed_ = last;
    }
  }
  message_.tensors.clear();
  return true;
}

void Parcel::withdraw() {
  is_withdrawn_ = true;
  borrowed_ = 0;
  parts_.clear();
  kept_.clear();
  message_ = {};
}

// --- Assembly

void Assembly::begin(ByteSpan payload) {
  if (is_begun_) refuse_frame("begins a message within another");
  const Beginning beginning = cut_beginning(payload, max_bytes_);
  left_ = beginning.bytes;
  if (!payload.empty() && payload.size() != left_) refuse_frame("has another length than its message");
  is_begun_ = true;
  message_ = Message{beginning.tag, {}, {}};
  part_ = at_ = 0;
  allocate(beginning);
  while (!payload.empty()) {
    skip_full_parts();
    const auto into = is_lost_ ? room(payload.size()) : part(part_).subspan(at_);
    const ByteSpan bytes = cut_bytes(payload, std::min(into.size(), payload.size()));
    std::memcpy(into.data(), bytes.data(), bytes.size());
    fill(bytes.size());
  }
}

void Assembly::allocate(const Beginning& beginning) {
  is_lost_ = false;
  tensors_.clear();
  try {
    message_.data.resize(beginning.data_bytes);
    for (const Row& row : beginning.rows) tensors_.emplace_back(row);
  } catch (const std::exception& error) {
    lose(error.what());
  }
}

/// Gives the message up: its remaining bytes are read and dropped.
void Assembly::lose(const char* why) {
  log_warning(fmt::format("a message from another host was lost: {}", why));
  message_ = {};
  tensors_.clear();
  is_lost_ = true;
  scrap_.resize(kMaxFrameBytes);
}

std::span<std::byte> Assembly::part(std::size_t i) noexcept {
  if (i == 0) return message_.data;
  return {tensors_[i - 1].tensor().as<std::byte>(), tensors_[i - 1].bytes()};
}

void Assembly::skip_full_parts() noexcept {
  while (!is_lost_ && part_ <= tensors_.size() && at_ == part(part_).size()) {
    ++part_;
    at_ = 0;
  }
}

std::span<std::byte> Assembly::room(std::size_t bytes) {
  if (!is_begun_ || bytes > left_ || bytes == 0) refuse_frame("has bytes of no message");
  if (is_lost_) return std::span(scrap_).first(bytes);
  skip_full_parts();
  const auto rest = part(part_).subspan(at_);
  if (bytes > rest.size()) refuse_frame("reaches from one tensor into another");
  try {
    if (part_ != 0) tensors_[part_ - 1].reserve(at_ + bytes);
  } catch (const Error& error) {
    lose(error.what());
    return std::span(scrap_).first(bytes);
  }
  return rest.first(bytes);
}

void Assembly::fill(std::size_t bytes) noexcept {
  at_ += bytes;
  left_ -= bytes;
}

void Assembly::withdraw() {
  if (!is_begun_) refuse_frame("withdraws no message");
  is_begun_ = false;
  tensors_.clear();
  message_ = {};
  left_ = 0;
}

std::optional<Message> Assembly::take() {
  is_begun_ = false;
  if (is_lost_) return {};
  for (const ArrivingTensor& arrived : tensors_) message_.tensors.push_back(arrived.tensor());
  tensors_.clear();
  return std::move(message_);
}

}  // namespace onecopy::transport
