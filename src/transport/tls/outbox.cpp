// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/tls/tls_link.h"

namespace onecopy::transport {

void Outbox::push(Queue& queue, Item&& item) {
  waiting_.fetch_add(1);
  if (&queue == &large_) large_waiting_.fetch_add(1);
  queue.items.push_back(std::move(item));
}

void Outbox::put_frame(FrameKind kind, Bytes&& bytes) {
  const LockGuard lock(mutex_);
  push(small_, {kind, std::move(bytes), {}, small_.put});
}

Outbox::Position Outbox::put(Message&& message) {
  const bool has_order = (message.tag & kInOrder) != 0;
  Parcel parcel(std::move(message));
  const std::uint64_t bytes = parcel.bytes();
  const LockGuard lock(mutex_);
  const bool is_small = parcel.is_whole() && !(has_order && large_waiting_.load() != 0);
  Queue& queue = is_small ? small_ : large_;
  const Position position{is_small, queue.put += bytes};
  push(queue, {FrameKind::message, {}, std::move(parcel), position.end});
  return position;
}

bool Outbox::has_room(Position position) const noexcept {
  return queue(position).sent.load() + SendWindow::kMaxBytes >= position.end || is_over_.load();
}

void Outbox::give_up() noexcept {
  is_over_ = true;
  window_.tell_waiters();
}

Outbox::Item* Outbox::find(Position position) {
  Queue& queue = position.is_small ? small_ : large_;
  if (queue.item && queue.item->parcel && queue.item->end == position.end) return &*queue.item;
  const auto at = std::ranges::find_if(
      queue.items, [&](const Item& item) { return item.parcel && item.end == position.end; });
  return at == queue.items.end() ? nullptr : &*at;
}

bool Outbox::keep(Position position) {
  constexpr std::size_t kBytesAtOnce = 256 << 10;
  const LockGuard lock(mutex_);
  Item* const item = find(position);
  return item && !item->parcel->keep(kBytesAtOnce);
}

bool Outbox::withdraw(Position position) {
  const LockGuard lock(mutex_);
  Item* const item = find(position);
  if (!item || item->parcel->is_given_out()) return false;
  item->parcel->withdraw();
  return true;
}

/// Returns false when the queue is empty. The bytes of an item that was withdrawn count as sent.
bool Outbox::next_item(Queue& queue) {
  const LockGuard lock(mutex_);
  if (queue.item) {
    queue.sent = queue.item->end;
    queue.item.reset();
    waiting_.fetch_sub(1);
    if (&queue == &large_) large_waiting_.fetch_sub(1);
  }
  if (queue.items.empty()) return false;
  queue.item = std::move(queue.items.front());
  queue.items.pop_front();
  return true;
}

void Outbox::append(FrameKind kind, ByteSpan bytes) {
  const FrameHead head{static_cast<std::uint32_t>(bytes.size()), kind};
  write_value(record_.data() + record_bytes_, head);
  record_bytes_ += sizeof head;
  rest_ = bytes;
}

/// Returns false when no further frame waits.
bool Outbox::append_frame() { return append_frame_of(small_) || append_frame_of(large_); }

bool Outbox::append_frame_of(Queue& queue) {
  const std::size_t room = record_.size() - record_bytes_ - sizeof(FrameHead);
  for (;;) {
    sending_ = &queue;
    if (queue.item && !queue.item->frame.empty()) {
      frame_ = std::exchange(queue.item->frame, {});
      sending_ = nullptr;
      append(queue.item->kind, frame_);
      return true;
    }
    if (auto part = queue.item && queue.item->parcel ? queue.item->parcel->next(room) : std::nullopt) {
      append(part->kind, part->bytes);
      return true;
    }
    if (!next_item(queue)) return false;
  }
}

ByteSpan Outbox::next_record(bool is_beat) {
  constexpr std::size_t kMinRoom = 512;  // if less is left, the next frame begins the next record
  record_bytes_ = 0;
  for (;;) {
    const std::size_t part = std::min(rest_.size(), record_.size() - record_bytes_);
    if (part != 0) {
      std::memcpy(record_.data() + record_bytes_, rest_.data(), part);
      record_bytes_ += part;
      rest_ = rest_.subspan(part);
      if (sending_) sending_->sent.fetch_add(part);
    }
    if (!rest_.empty() || record_.size() - record_bytes_ < kMinRoom || !append_frame()) break;
  }
  if (record_bytes_ == 0 && is_beat) append(FrameKind::heartbeat, {});
  return {record_.data(), record_bytes_};
}

}  // namespace onecopy::transport
