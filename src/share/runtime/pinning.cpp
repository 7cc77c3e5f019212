// SPDX-License-Identifier: Apache-2.0
#include "share/runtime/pinning.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "core/throw_error.h"
#include "device/pinned_ranges.h"
#include "os/log.h"
#include "os/page_tables.h"
#include "share/owner/late_releases.h"
#include "share/session.h"

namespace onecopy {

namespace {

/// Returns the backend's reason why devices of `type` cannot be used here.
std::string reason_of(DeviceType type) {
  try {
    backend(type).synchronize(0, {});
  } catch (const Error& error) {
    return error.what();
  }
  return "it has no device";
}

/// Returns a card to pin for: one that this process already uses, or else the first of the kind that this machine has.
Device card_to_pin_for() {
  for (const DeviceType type : backend_types()) {
    if (type == DeviceType::cpu) continue;
    Backend& found = backend(type);
    if (const int used = found.device_in_use(); used >= 0) return {type, static_cast<std::int16_t>(used)};
    if (found.is_in_process() && !found.devices().empty()) return {type, 0};
  }
  throw_error(ErrorCode::unsupported,
              "memory is pinned by the driver of a card, and this process sees none: neither CUDA's ({}) "
              "nor Ascend's; `onecopy doctor` lists the libraries it looked for",
              reason_of(DeviceType::cuda));
}

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

Pinning::Pinning(EventLoop& loop, StreamOrder& streams, Pools& pools)
    : streams_(streams), pools_(pools), looks_(loop, [this] { return poll(); }) {
  PinnedRanges::on_segment_end([this] {
    has_segment_ended_ = true;
    looks_.request();
  });
  LateReleases::set_hooks({.on_wait = [this] { looks_.request(); },
                           .on_work = [this] { settling_.request(); },
                           .must_not_wait = [&loop] { return loop.runs_here(); }});
}

Timer::Pause Pinning::poll() noexcept {
  // Read now, because a thread may be about to unmap a segment.
  const bool again = has_segment_ended_.exchange(false);
  sweep();
  LateReleases* const late = LateReleases::active();
  const bool waiting = late && late->release_due();
  return Timer::soon_if(waiting || again);
}

void Pinning::settle() noexcept {
  if (LateReleases* const late = LateReleases::active()) late->settle();
}

void Pinning::stop(std::chrono::milliseconds patience) noexcept {
  unpinning_.stop(patience);
  settling_.stop(patience);
}

/// Returns the piece of a tensor. A block that is a segment of its own may span several units and has no neighbours.
Pinning::Piece Pinning::piece_of(const Tensor& tensor) {
  BlockGroup* const group = tensor.block().group();
  if (!group || !group->shareable())
    throw Error(ErrorCode::invalid_argument,
                "this tensor's memory belongs to the store or to another library; pin a copy in memory of "
                "onecopy: empty(..., pin=True), and copy into it");
  if (is_private(tensor))
    throw Error(ErrorCode::unsupported,
                "this tensor of a stored version was received for writing, and pinning would copy all of "
                "its pages; pin a copy in memory of onecopy: empty(..., pin=True), and copy into it");
  if (tensor.device() != kCpu)
    throw_error(ErrorCode::invalid_argument, "memory of {} is not pinned: it is a card's own already",
                tensor.device().str());
  SharedBlocks& root = as_shared(*group).root();
  const std::uint32_t block = tensor.block().number();
  const std::uint32_t segment = root.segment_of(block);
  Piece piece{&root, root.keep_alive(), root.segment_memory(segment, tensor.access()), segment};
  const auto bytes = root.bytes_of(block, tensor.access());
  if (!piece.memory)
    throw Error(ErrorCode::stale_handle,
                "the memory of this tensor is not mapped here any more: open it again");
  const auto begin = static_cast<std::uint64_t>(bytes.data() - piece.memory->data());
  const std::uint64_t end = begin + std::max<std::uint64_t>(bytes.size(), 1);
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t size = (piece.memory->size() + page - 1) / page * page;
  piece.offset = begin / kPinUnit * kPinUnit;
  piece.bytes = std::min((end + kPinUnit - 1) / kPinUnit * kPinUnit, size) - piece.offset;
  return piece;
}

void Pinning::note(Piece& piece, std::uint32_t block, Use use) {
  piece.users.insert(block);
  if (use == Use::views) piece.viewed.insert(block);
}

void Pinning::pin(const Tensor& tensor, std::optional<Device> card, Use use) {
  Piece piece = piece_of(tensor);
  const std::uint32_t block = tensor.block().number();
  if (try_use(piece, block, use)) return;
  {
    const LockGuard making(making_);
    if (try_use(piece, block, use)) return;
    if (!card) card = card_to_pin_for();
    make(std::move(piece), block, *card, use);
  }
  streams_.note_use(*card);
}

/// Uses a piece that is pinned, also one that is waiting to be unpinned.
bool Pinning::try_use(const Piece& wanted, std::uint32_t block, Use use) {
  const LockGuard lock(mutex_);
  pieces_.insert(left_.extract(wanted.at()));
  const auto found = pieces_.find(wanted.at());
  if (found != pieces_.end()) note(found->second, block, use);
  return found != pieces_.end();
}

/// Pins a piece. Reserves its pages first, because the driver would add missing ones regardless of the cgroup's limit.
void Pinning::make(Piece piece, std::uint32_t block, Device card, Use use) {
  make_room(piece.bytes);
  LateReleases::activate(card.type);
  std::byte* const at = piece.at();
  note(piece, block, use);
  Pieces made;  // made before the pin, so that nothing can fail between the pin and its record
  made.emplace(at, piece);
  piece.group->begin_pin(piece.segment);
  const auto begin = Clock::now();
  auto present = begin;
  try {
    const std::uint64_t inside = std::min<std::uint64_t>(piece.bytes, piece.memory->size() - piece.offset);
    if (piece.memory->access() == Access::read_write) piece.memory->populate(piece.offset, inside);
    present = Clock::now();
    const PageTableFiller filler(at, inside);
    PinnedRanges::get().pin(card, at, piece.bytes, piece.memory->access());
  } catch (...) {
    piece.group->end_pin(piece.segment);
    throw;
  }
  {
    const LockGuard lock(mutex_);
    pieces_.merge(made);
  }
  log_info("pinned {} bytes: {:.1f} ms to reserve them, {:.1f} ms for the driver", piece.bytes,
           milliseconds(present - begin), milliseconds(Clock::now() - present));
}

void Pinning::pin_memory(std::byte* at, std::size_t bytes, Access access) {
  const Device card = card_to_pin_for();
  const LockGuard making(making_);
  make_room(bytes);
  PinnedRanges::get().pin(card, at, bytes, access);
}

void Pinning::make_room(std::uint64_t bytes) {
  const std::uint64_t most = limit();
  const auto is_enough = [&] {
    const std::uint64_t pinned = PinnedRanges::get().bytes();
    return pinned <= most && bytes <= most - pinned;
  };
  if (is_enough()) return;
  end(take_idle());
  end(take_left());
  if (!is_enough())
    throw_error(ErrorCode::out_of_memory,
                "cannot pin {} bytes: this process has pinned {} of the {} that it may; unpin tensors, or "
                "raise ONECOPY_PIN_LIMIT",
                bytes, PinnedRanges::get().bytes(), most);
}

void Pinning::unpin(const Tensor& tensor) {
  const Piece piece = piece_of(tensor);
  const std::set<std::uint32_t> unpinned{tensor.block().number()};
  const LockGuard making(making_);
  Pieces gone;
  {
    const LockGuard lock(mutex_);
    const auto found = pieces_.find(piece.at());
    if (found == pieces_.end()) return;
    std::erase_if(found->second.users, [&](std::uint32_t block) {
      return block == tensor.block().number() || !piece.group->holds(block);
    });
    std::erase_if(found->second.viewed, [&](std::uint32_t block) { return !piece.group->holds(block); });
    if (!found->second.users.empty() || !found->second.viewed.empty()) return;
    gone.insert(pieces_.extract(found));
  }
  end(std::move(gone), unpinned);
}

bool Pinning::is_pinned(const Tensor& tensor) {
  const BlockGroup* const group = tensor.block().group();
  if (!PinnedRanges::any() || !group || tensor.device() != kCpu) return false;
  return PinnedRanges::get().is_pinned(tensor.data(),
                                       std::max<std::size_t>(1, tensor.layout().extent_bytes()));
}

Pinning::Pieces Pinning::take(const std::function<bool(const Piece&)>& is_chosen) noexcept {
  Pieces taken;
  const LockGuard lock(mutex_);
  for (auto at = pieces_.begin(); at != pieces_.end();) {
    const auto piece = at++;
    if (is_chosen(piece->second)) taken.insert(pieces_.extract(piece));
  }
  return taken;
}

void Pinning::sweep() noexcept {
  Pieces gone = take([](const Piece& piece) { return piece.memory.use_count() == 1; });
  if (gone.empty()) return;
  {
    const LockGuard lock(mutex_);
    left_.merge(gone);
  }
  unpinning_.request();
}

Pinning::Pieces Pinning::take_left() noexcept {
  const LockGuard lock(mutex_);
  return std::exchange(left_, {});
}

Pinning::Pieces Pinning::take_idle() noexcept {
  return take(
      [](const Piece& piece) { return !piece.group->uses(piece.segment, piece.offset, piece.bytes, {}); });
}

void Pinning::end_left() noexcept {
  const LockGuard making(making_);
  end(take_left());
}

std::uint64_t Pinning::end_idle() {
  const LockGuard making(making_);
  return end(take_idle()) + end(take_left());
}

/// Unpins pieces: tells the driver first, then the owner, and ends the mapping last. Keeps pieces that contain other
/// blocks.
std::uint64_t Pinning::end(Pieces pieces, const std::set<std::uint32_t>& others) noexcept {
  std::uint64_t bytes = 0;
  std::erase_if(pieces, [&](const auto& at) {
    const Piece& piece = at.second;
    const bool has_ended = PinnedRanges::get().unpin_unused(
        piece.at(), [&] { return piece.group->uses(piece.segment, piece.offset, piece.bytes, others); });
    if (!has_ended) return false;
    piece.group->end_pin(piece.segment);
    bytes += piece.bytes;
    return true;
  });
  {
    const LockGuard lock(mutex_);
    pieces_.merge(pieces);
  }
  if (bytes != 0) pools_.look_again();
  return bytes;
}

void Pinning::abandon() noexcept {
  pieces_.clear();
  left_.clear();
}

}  // namespace onecopy
