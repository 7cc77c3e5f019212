// SPDX-License-Identifier: Apache-2.0
#include "channel/codec/tensor_packer.h"

#include "channel/codec/tensor_order.h"
#include "os/deadline_scope.h"

namespace onecopy {
namespace {

constexpr std::size_t kMaxKnown = SegmentDirectory::kIndices;

/// Returns the name of the tensor's segment. REQUIRES: `group` is shared_blocks() of the tensor.
SegmentOrigin name_segment(const Session& session, SharedBlocks& group, const Tensor& tensor) {
  const ExportedBlock at = group.export_block(tensor.block().number(), tensor.access());
  return {group.owner(),   session.id(), device_type(at.kind), at.identity->uuid,
          at.info.segment, at.kind,      at.segment_size};
}

}  // namespace

std::size_t Manifest::bytes() const noexcept {
  std::size_t bytes = encoded_size(order);
  for (const Row& row : rows()) bytes += encoded_size(row.row);
  return bytes;
}

std::byte* Manifest::write(std::byte* out) const noexcept {
  for (const Row& row : rows()) out = encode(row.row, out);
  return order.points.empty() ? out : encode(order, out);
}

std::optional<Manifest> TensorPacker::pack(Session& session, const Departure& departure,
                                           const Limits& limits) {
  std::optional<Manifest> manifest = pack_unordered(session, departure.tensors, limits, directory_.epoch());
  if (manifest && departure.needs_order)
    manifest->order = order_of(session, departure.tensors, departure.stream);
  return manifest;
}

std::optional<Manifest> TensorPacker::pack_unordered(Session& session, std::span<const Tensor> tensors,
                                                     const Limits& limits, std::uint32_t epoch) {
  std::optional<Manifest> manifest(std::in_place, epoch, tensors.size());
  for (const Tensor& tensor : tensors)
    if (!add(session, tensor, limits, *manifest)) {
      manifest.reset();
      break;
    }
  return manifest;  // the only return value, because the compiler would copy a row otherwise
}

/// Adds a tensor to the manifest. Returns false if the creator would have to be asked and may not.
bool TensorPacker::add(Session& session, const Tensor& tensor, const Limits& limits, Manifest& manifest) {
  const LocatedBlock at = session.locate(tensor, "put");
  const std::optional<std::uint16_t> index = index_of(session, tensor, at, limits, manifest.epoch());
  if (!index) [[unlikely]]
    return false;
  Manifest::Row& added = manifest.add(*index, at.spot, tensor);
  if (*index == kWholeHandle) [[unlikely]] {
    added.handle = encode(session.share(tensor).fields());
    added.row.handle = added.handle;
  }
  return true;
}

void TensorPacker::prepare(Session& session, std::span<const Tensor> tensors, Deadline deadline) {
  for (const Tensor& tensor : tensors)
    index_of(session, tensor, session.locate(tensor, "put"), {deadline}, directory_.epoch());
}

/// Returns the index of the tensor's segment, in `epoch` or in the epoch that this call has begun; kWholeHandle if the
/// directory has no room; empty if the creator would have to be asked and may not. Throws as Ring::exclusively() does.
/// Two threads may enter one segment at once, which only gives the segment two entries.
std::optional<std::uint16_t> TensorPacker::index_of(Session& session, const Tensor& tensor,
                                                    const LocatedBlock& at, const Limits& limits,
                                                    std::uint32_t epoch) {
  const Key key{at.group.serial(), at.spot.info.segment, tensor.access()};
  if (has_lost_creator()) [[unlikely]]
    doubt_retention();
  if (const auto index = last_.find(std::get<0>(key), std::get<1>(key), std::get<2>(key), epoch))
    return *index;  // a copy of the optional would read both of its parts at once, just after they were written
  const std::optional<CachedSegment> before = find_known(key);
  const bool must_ask_creator = !before || must_ask(session, *before);
  if (!must_ask_creator && has_index(*before, epoch)) return before->index;
  if (!limits.may_ask) return {};
  CachedSegment now = before.value_or(CachedSegment{});
  const SegmentOrigin ref = name_segment(session, at.group, tensor);
  const DeadlineScope scope(limits.deadline);
  if (must_ask_creator) ask_creator(session, tensor, ref.kind, now);
  if (!has_index(now, epoch)) enter(ref, tensor.access(), limits.deadline, now);
  remember(key, now);
  return now.index;
}

/// Returns whether the known index can be used. A segment for which the directory had no room gets an index once there
/// is room.
bool TensorPacker::has_index(const CachedSegment& known, std::uint32_t epoch) const noexcept {
  return known.epoch == epoch && (known.index != kWholeHandle || !directory_.has_room());
}

void TensorPacker::rely_on_creator(Session& session) {
  const ConnectionEnd creator = session.queues().connection_end(creator_);
  if (!creator) return;
  const LockGuard lock(mutex_);
  if (relied_on_once_.empty() || relied_on_once_.back() != creator) relied_on_once_.push_back(creator);
  relied_on_.store(creator.get(), std::memory_order_release);
}

/// Returns whether the connection to the creator has ended, after which the creator may have released segments that it
/// was asked to retain.
bool TensorPacker::has_lost_creator() const noexcept {
  const std::atomic<bool>* const has_ended = relied_on_.load(std::memory_order_acquire);
  return has_ended && *has_ended;
}

/// Makes the next puts ask the creator again for all segments.
void TensorPacker::doubt_retention() noexcept {
  const LockGuard lock(mutex_);
  relied_on_ = nullptr;
  for (auto& [key, known] : known_) known.ask_again = TimePoint::min();
  last_.forget();
}

bool TensorPacker::must_ask(Session& session, const CachedSegment& known) const {
  return !known.is_settled() && known.ask_again <= std::chrono::steady_clock::now() &&
         !session.queues().is_silent(creator_);
}

std::optional<TensorPacker::CachedSegment> TensorPacker::find_known(const Key& key) {
  const LockGuard lock(mutex_);
  const auto at = known_.find(key);
  if (at == known_.end()) return {};
  remember_last(key, at->second);
  return at->second;
}

void TensorPacker::remember(const Key& key, const CachedSegment& known) {
  const LockGuard lock(mutex_);
  if (known_.size() == kMaxKnown) forget_most();
  CachedSegment& before = known_[key];
  if (known.is_unkept && !before.is_unkept) unkept_.fetch_add(1, std::memory_order_relaxed);
  if (!known.is_unkept && before.is_unkept) unkept_.fetch_sub(1, std::memory_order_relaxed);
  before = known;
  remember_last(key, known);
}

/// Drops what is known of segments, most of which are gone. Keeps the segments that unkept() counts, or ends their
/// count.
void TensorPacker::forget_most() noexcept {
  std::erase_if(known_, [](const auto& known) { return !known.second.is_unkept; });
  if (known_.size() < kMaxKnown) return;
  unkept_.store(0, std::memory_order_relaxed);
  known_.clear();
}

void TensorPacker::remember_last(const Key& key, const CachedSegment& known) noexcept {
  if (known.is_settled() && known.index != kWholeHandle)
    last_.remember(std::get<0>(key), std::get<1>(key), std::get<2>(key), known.epoch, known.index);
}

void TensorPacker::ask_creator(Session& session, const Tensor& tensor, SegmentKind kind,
                               CachedSegment& known) {
  constexpr std::chrono::seconds kOutOfReach{10};
  const Retention retention = session.queues().retain(tensor.block(), creator_, directory_.queue());
  point("queue.put.retained");
  const bool is_retained = retention == Retention::retained;
  const bool is_needless = retention == Retention::not_needed;
  known.is_unkept = !is_needless && (!is_retained || is_weak(kind));
  known.ask_again = TimePoint::max();
  if (retention == Retention::pending) known.ask_again = TimePoint::min();
  if (retention == Retention::unreachable) known.ask_again = std::chrono::steady_clock::now() + kOutOfReach;
  if (is_retained || is_needless) rely_on_creator(session);
}

/// Appends a segment to the directory. The entry names this process, which holds the memory, as its maker; receivers
/// ask the creator without being told.
void TensorPacker::enter(const SegmentOrigin& segment, Access access, Deadline deadline,
                         CachedSegment& known) {
  ring_.exclusively(deadline, [&] {
    known.index = directory_.append(segment, access).value_or(kWholeHandle);
    known.epoch = directory_.epoch();
  });
}

void TensorPacker::reset() noexcept {
  const LockGuard lock(mutex_);
  known_.clear();
  last_.forget();
  relied_on_ = nullptr;
  relied_on_once_.clear();
  unkept_ = 0;
}

}  // namespace onecopy
