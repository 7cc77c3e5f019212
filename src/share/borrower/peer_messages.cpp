// SPDX-License-Identifier: Apache-2.0
// The messages between a borrower and the broker of another process, and their effects on the borrower's side.
#include <fmt/format.h>

#include <exception>
#include <utility>
#include <vector>

#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "share/borrower/peer.h"

namespace onecopy {
namespace {

wire::WantSegment want_of(const Peer::SegmentRequest& wanted) {
  return {wanted.segment, wanted.access == Access::read_only, wanted.number};
}

Bytes want_segment(const Peer::SegmentRequest& wanted) { return wire::pack(want_of(wanted)); }

}  // namespace

void Peer::prove(const wire::Nonce& mine, const std::string& my_name) {
  const ByteSpan secret = std::as_bytes(std::span(owner_));
  const Packet packet = client_.receive();
  wire::expect(packet.bytes, wire::Type::challenge);
  const auto challenge = wire::body_of<wire::Challenge>(packet.bytes);
  const Digest expected = onecopy::prove(secret, "broker", challenge.nonce, mine);
  if (!is_proof(challenge.proof, expected))
    throw Error(ErrorCode::bad_secret,
                "another process listens in the place of this handle's owner and does not know its "
                "secret; the handle was not used");
  const wire::Prove proof{onecopy::prove(secret, "borrower", mine, challenge.nonce),
                          wire::to_name(my_name)};
  client_.send(wire::pack(proof));
  if (wanted_) client_.request_ahead(want_segment(*wanted_));  // before the welcome has come
}

void Peer::finish_handshake() {
  Packet packet = client_.receive();
  wire::expect(packet.bytes, wire::Type::welcome);
  if (packet.fds.size() != 2) throw Error(ErrorCode::protocol, "a welcome without its descriptors");
  set_table(std::move(packet.fds[0]));
  leases_.set_page(map_claims(packet.fds[1]));
  if (!wanted_) return;
  packet = client_.receive_answer();
  // Refused: a thread that claims the block asks again and gets the reason.
  if (wire::type_of(packet.bytes) == wire::Type::segment)
    map_segment(*wanted_,
                with_rest(wire::memory_in<wire::Segment>(std::move(packet), 0), wanted_->segment));
}

ExportedMemory Peer::fetch_memory(const SegmentRequest& wanted) {
  Packet packet = client_.request(want_segment(wanted), wire::Type::segment);
  return with_rest(wire::memory_in<wire::Segment>(std::move(packet), 0), wanted.segment);
}

ExportedMemory Peer::with_rest(ExportedMemory memory, std::uint32_t segment) {
  if (memory.missing == 0) return memory;
  memory.rest = [self = shared_from_this(), segment](std::size_t first) {
    const wire::WantRest body{segment, static_cast<std::uint32_t>(first)};
    return self->client_.request(wire::pack(body), wire::Type::rest).fds;
  };
  return memory;
}

void Peer::map_segment(const SegmentRequest& wanted, ExportedMemory memory) {
  const std::uint64_t size = memory.size;
  segments_.map(wanted.segment, wanted.access, std::move(memory), wanted.user);
  log_debug(
      [&] { return fmt::format("mapped segment {} of owner {}, {} bytes", wanted.segment, name_, size); });
}

void Peer::fetch_segment(const SegmentRequest& wanted) { map_segment(wanted, fetch_memory(wanted)); }

void Peer::fetch_ahead(std::span<const SegmentRequest> wanted) {
  constexpr std::size_t kAhead = 8;
  std::vector<Bytes> questions;
  questions.reserve(wanted.size());
  for (const SegmentRequest& segment : wanted) questions.push_back(want_segment(segment));
  client_.request_all(std::move(questions), kAhead,
                      [&](std::size_t at, Packet packet) { map_answer(wanted[at], std::move(packet)); });
}

/// One message for many: a model in memory of cudaMalloc lies in thousands of allocations.
void Peer::fetch_described(std::span<const SegmentRequest> wanted) {
  constexpr std::size_t kAhead = 3;
  std::vector<std::span<const SegmentRequest>> parts;
  std::vector<Bytes> questions;
  for (; !wanted.empty(); wanted = wanted.subspan(parts.back().size())) {
    parts.push_back(wanted.first(std::min<std::size_t>(wanted.size(), wire::kMostAskedAtOnce)));
    std::vector<wire::WantSegment> bodies;
    for (const SegmentRequest& segment : parts.back()) bodies.push_back(want_of(segment));
    questions.push_back(wire::want_segments(bodies));
  }
  client_.request_all(std::move(questions), kAhead,
                      [&](std::size_t at, const Packet& packet) { map_answers(parts[at], packet); });
}

/// A segment that is left out is asked for again when one of its blocks is opened; the caller gets the reason then.
void Peer::map_answer(const SegmentRequest& wanted, Packet packet) noexcept {
  try {
    if (wire::type_of(packet.bytes) != wire::Type::segment) return;
    ExportedMemory memory = wire::memory_in<wire::Segment>(std::move(packet), 0);
    if (memory.missing == 0) map_segment(wanted, std::move(memory));
  } catch (const std::exception&) {
  }
}

/// Each segment that cannot be mapped is left out by itself.
void Peer::map_answers(std::span<const SegmentRequest> wanted, const Packet& packet) noexcept {
  try {
    if (wire::type_of(packet.bytes) != wire::Type::segments) return;
    auto described = wire::segments_in(packet.bytes, wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i)
      if (described[i]) try_map(wanted[i], *std::move(described[i]));
  } catch (const std::exception&) {
  }
}

void Peer::try_map(const SegmentRequest& wanted, ExportedMemory memory) noexcept {
  try {
    map_segment(wanted, std::move(memory));
  } catch (const std::exception&) {
  }
}

HeldSegment Peer::fetch_foreign(const std::string& owner_name, const SegmentRequest& wanted) {
  const wire::WantForeign body{wire::to_name(owner_name), wanted.segment,
                               wanted.access == Access::read_only, wanted.number};
  Packet packet = client_.request(wire::pack(body), wire::Type::segment);
  const auto answer = wire::body_of<wire::Segment>(packet.bytes);
  if (!answer.has_table || packet.fds.empty())
    throw Error(ErrorCode::protocol, "a foreign segment came without its block table");
  Fd table = std::move(packet.fds[0]);
  return {std::move(table), wire::memory_in<wire::Segment>(std::move(packet), 1), answer.owner_gone != 0};
}

void Peer::retain(const SegmentKey& key, const ProcessOrigin& origin, const Fd& table,
                  const ExportedMemory& memory, std::uint64_t queue, std::uint64_t number) {
  const wire::Retain body{wire::to_name(key.first),
                          origin.pid,
                          origin.start_time,
                          memory.size,
                          queue,
                          number,
                          key.second,
                          static_cast<std::uint8_t>(memory.kind),
                          memory.device};
  client_.request(wire::pack(body, memory.blob), wire::Type::retained, wire::descriptors(memory, table),
                  BrokerClient::WhenSilent::leave);
}

ForeignTimeline& Peer::timeline() {
  {
    const LockGuard lock(timeline_mutex_);
    if (timeline_) return *timeline_;
  }  // a fork takes it, and does not wait for the owner
  const Packet packet = client_.request(wire::pack(wire::WantTimeline{}), wire::Type::timeline);
  if (packet.fds.size() != 1) throw Error(ErrorCode::protocol, "a timeline without its descriptor");
  const LockGuard lock(timeline_mutex_);
  if (timeline_) return *timeline_;  // another thread has asked, too
  timeline_ = std::make_unique<ForeignTimeline>(packet.fds[0], [this] { return has_ended(); });
  if (gone_) timeline_->end();
  return *timeline_;
}

void Peer::join_queue(std::uint64_t queue) {
  client_.request(wire::pack(wire::JoinQueue{queue}), wire::Type::joined);
}

bool Peer::leave_queue(std::uint64_t queue) noexcept { return client_.notify(wire::LeaveQueue{queue}); }

bool Peer::acknowledge(std::uint64_t hold) noexcept { return client_.notify(wire::Acknowledge{hold}); }

bool Peer::forget(const SegmentKey& key) noexcept {
  return client_.notify(wire::Forget{wire::to_name(key.first), key.second});
}

bool Peer::release(const SegmentKey& key, std::uint64_t number) noexcept {
  return client_.notify(wire::Release{wire::to_name(key.first), key.second, number});
}

void Peer::take_news(Packet packet) {
  if (wire::type_of(packet.bytes) == wire::Type::retain_mine) return retain_its(std::move(packet));
  const std::uint32_t segment = wire::body_of<wire::Retire>(packet.bytes).segment;
  segments_.retire(segment);
  if (retention_) retention_->retire({name_, segment});
  PinnedRanges::segment_ended();
}

void Peer::retain_its(Packet packet) {
  const auto body = wire::body_of<wire::Retain>(packet.bytes);
  if (packet.fds.empty() || !retention_) return;
  Fd table = std::move(packet.fds[0]);
  retention_->segments.add({wire::to_string(body.owner), body.segment}, {body.owner_pid, body.owner_start},
                           std::move(table), wire::memory_in<wire::Retain>(std::move(packet), 1),
                           body.queue);
}

}  // namespace onecopy
