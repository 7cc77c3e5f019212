// SPDX-License-Identifier: Apache-2.0
// The messages between a borrower and the broker of another process, and their effects on the borrower's side.
#include <fmt/format.h>

#include <exception>
#include <utility>
#include <vector>

#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "share/borrower/peer.h"

namespace onecopy {
namespace {

wire::WantSegment want_of(const SegmentRequest& wanted) {
  return {wanted.segment, wanted.access == Access::read_only, wanted.number};
}

Bytes want_segment(const SegmentRequest& wanted) { return wire::pack(want_of(wanted)); }

ExportedMemory memory_in(Packet packet) {
  return wire::unpack<wire::Segment>(packet.bytes).memory.with(std::move(packet.fds));
}

}  // namespace

void Peer::prove(const peer::Greeting& greeting) {
  broker_.send(greeting.prove(broker_.receive().bytes, std::as_bytes(std::span(process_.id()))));
  if (wanted_) broker_.request_ahead(want_segment(*wanted_));  // sent before the welcome arrives
}

void Peer::finish_handshake() {
  Packet packet = broker_.receive();
  wire::expect(packet.bytes, wire::Type::welcome);
  if (packet.fds.size() != 2) throw Error(ErrorCode::protocol, "a welcome without its descriptors");
  set_table(std::move(packet.fds[0]));
  blocks_.leases().set_page(map_claims(packet.fds[1]));
  if (!wanted_) return;
  packet = broker_.receive_answer();
  // If the owner refused, a thread that claims the block asks again and gets the reason.
  if (wire::type_of(packet.bytes) == wire::Type::segment)
    blocks_.segments().map(*wanted_, with_rest(memory_in(std::move(packet)), wanted_->segment));
}

ExportedMemory Peer::fetch_memory(const SegmentRequest& wanted) {
  Packet packet = broker_.request(want_segment(wanted), wire::Type::segment);
  return with_rest(memory_in(std::move(packet)), wanted.segment);
}

ExportedMemory Peer::with_rest(ExportedMemory memory, std::uint32_t segment) {
  if (memory.missing == 0) return memory;
  memory.rest = [self = shared_from_this(), segment](std::size_t first) {
    const wire::WantRest body{segment, static_cast<std::uint32_t>(first)};
    return self->broker_.request(wire::pack(body), wire::Type::rest).fds;
  };
  return memory;
}

void Peer::fetch_ahead(std::span<const SegmentRequest> wanted, std::span<const SegmentRequest> described) {
  constexpr std::size_t kAhead = 8;
  fetch_described(described);
  std::vector<Bytes> questions;
  questions.reserve(wanted.size());
  for (const SegmentRequest& segment : wanted) questions.push_back(want_segment(segment));
  broker_.request_all(std::move(questions), kAhead,
                      [&](std::size_t at, Packet packet) { map_answer(wanted[at], std::move(packet)); });
}

/// Asks for many segments in one message, because a model in memory of cudaMalloc has thousands of allocations.
void Peer::fetch_described(std::span<const SegmentRequest> wanted) {
  constexpr std::size_t kAhead = 3;
  std::vector<std::span<const SegmentRequest>> parts;
  std::vector<Bytes> questions;
  for (; !wanted.empty(); wanted = wanted.subspan(parts.back().size())) {
    parts.push_back(wanted.first(std::min<std::size_t>(wanted.size(), wire::kMaxAskedAtOnce)));
    wire::WantSegments question;
    for (const SegmentRequest& segment : parts.back()) question.wanted.push_back(want_of(segment));
    questions.push_back(wire::pack(question));
  }
  broker_.request_all(std::move(questions), kAhead,
                      [&](std::size_t at, const Packet& packet) { map_answers(parts[at], packet); });
}

/// Maps the segment of an answer. A segment that is skipped is asked for again when one of its blocks is opened, and
/// the caller then gets the reason.
void Peer::map_answer(const SegmentRequest& wanted, Packet packet) noexcept {
  try {
    if (wire::type_of(packet.bytes) != wire::Type::segment) return;
    ExportedMemory memory = memory_in(std::move(packet));
    if (memory.missing == 0) blocks_.segments().map(wanted, std::move(memory));
  } catch (const std::exception&) {
  }
}

/// Maps the segments of an answer. Skips each segment that cannot be mapped.
void Peer::map_answers(std::span<const SegmentRequest> wanted, const Packet& packet) noexcept {
  try {
    if (wire::type_of(packet.bytes) != wire::Type::segments) return;
    auto described = wire::unpack<wire::Segments>(packet.bytes).segments;
    if (described.size() != wanted.size()) return;
    for (std::size_t i = 0; i < wanted.size(); ++i)
      if (described[i].size != 0) try_map(wanted[i], std::move(described[i]).with({}));
  } catch (const std::exception&) {
  }
}

void Peer::try_map(const SegmentRequest& wanted, ExportedMemory memory) noexcept {
  try {
    blocks_.segments().map(wanted, std::move(memory));
  } catch (const std::exception&) {
  }
}

ForeignTimeline& Peer::timeline() {
  {
    const LockGuard lock(timeline_mutex_);
    if (timeline_) return *timeline_;
  }  // released, because a fork takes the lock and must not wait for the owner
  const Packet packet = broker_.request(wire::pack(wire::WantTimeline{}), wire::Type::timeline);
  if (packet.fds.size() != 1) throw Error(ErrorCode::protocol, "a timeline without its descriptor");
  const LockGuard lock(timeline_mutex_);
  if (timeline_) return *timeline_;  // another thread has asked first
  timeline_ = std::make_unique<ForeignTimeline>(packet.fds[0], [this] { return process_.has_ended(); });
  if (is_gone()) timeline_->end();
  return *timeline_;
}

void Peer::handle_unsolicited(Packet packet) {
  if (wire::type_of(packet.bytes) == wire::Type::retain_mine) return retain_for_owner(std::move(packet));
  const std::uint32_t segment = wire::unpack<wire::Retire>(packet.bytes).segment;
  blocks_.segments().retire(segment);
  if (retention_) retention_->retire({process_.name(), segment});
  PinnedRanges::segment_ended();
}

void Peer::retain_for_owner(Packet packet) {
  if (packet.fds.empty() || !retention_) return;
  auto asked = wire::unpack<wire::RetainMine>(packet.bytes);
  Fd table = wire::take_table(packet.fds);
  retention_->segments.add({asked.owner, asked.segment}, asked.origin, std::move(table),
                           std::move(asked.memory).with(std::move(packet.fds)), asked.queue);
}

}  // namespace onecopy
