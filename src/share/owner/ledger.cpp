// SPDX-License-Identifier: Apache-2.0
#include "share/owner/ledger.h"

#include <algorithm>
#include <array>
#include <thread>

#include "core/throw_error.h"
#include "os/memfd.h"
#include "os/process.h"
#include "share/owner/late_releases.h"

namespace onecopy {

Ledger::Ledger(const ProcessId& owner, const SegmentTable& segments, Wakeup limbo)
    : owner_(owner),
      pid_(current_pid()),
      segments_(segments),
      limbo_(std::move(limbo)),
      file_(create_memfd("onecopy-blocks", kTableBytes)),
      table_inode_(inode_of(file_)),
      mark_(file_),
      records_(Mapping::of(file_, kTableBytes, Access::read_write)),
      local_memory_(Mapping::anonymous(kMaxBlocks * sizeof(Local))),
      local_(local_memory_.as<Local>()),
      table_(records_.as<Record>(), kMaxBlocks),
      pins_(PinWords(records_.as<PinWords::Word>(kHolesAt))) {
  add_seals(file_, kSealFutureWrite);  // so that borrowers cannot map it writable
}

/// Returns the owner; in a forked child this is another process, which may be gone.
ProcessOrigin Ledger::origin() const {
  if (const std::uint64_t known = start_time_) return {pid_, known};
  const ProcessOrigin origin =
      pid_ == current_pid() ? this_process_origin() : ProcessOrigin{pid_, process_start_time(pid_)};
  start_time_ = origin.start_time;
  return origin;
}

BlockRef Ledger::add(const Extent& extent, ExtentOwner& from) {
  ReleasableLock lock(mutex_);
  table_.drain([&](std::uint32_t block) {
    mutex_.assert_held();
    reusable_.push_back(block);
  });
  if (!reusable_.empty()) {
    lock.unlock();
    reclaim([](auto) {});
    lock.lock();
  }
  make_room();
  const std::uint16_t source = index_of(from);
  const std::uint32_t block = table_.take();
  if (block != kMaxBlocks) {
    Record& r = table_.record(block);
    r.segment = extent.segment;
    r.offset = extent.offset;
    r.size = extent.size;
    Local& local = local_[block];
    local.source = source;
    local.keeps_others = false;
    local.data = extent.data;
    local.refs.store(1, std::memory_order_relaxed);
    table_.publish(block);
  }
  lock.unlock();
  if (block == kMaxBlocks)
    throw_error(ErrorCode::out_of_memory,
                "all {} blocks of this process are in use, {} of them waiting for "
                "borrowers; release tensors, or put small ones into one larger tensor",
                kMaxBlocks, limbo());
  return {this, block};
}

/// Makes room for every block, so that a release never allocates.
void Ledger::make_room() {
  constexpr std::size_t kLeast = 64;
  if (reusable_.capacity() <= table_.used())
    reusable_.reserve(std::max(kLeast, std::size_t{2} * table_.used()));
}

std::uint16_t Ledger::index_of(ExtentOwner& from) {
  const auto at = std::find(sources_.begin(), sources_.end(), &from);
  if (at != sources_.end()) return static_cast<std::uint16_t>(at - sources_.begin());
  sources_.push_back(&from);
  return static_cast<std::uint16_t>(sources_.size() - 1);
}

void Ledger::keep_with(std::uint32_t block, std::vector<BlockRef> kept) {
  const LockGuard lock(mutex_);
  kept_[block] = std::move(kept);
  local_[block].keeps_others = true;
}

BlockRef Ledger::try_open(std::uint32_t block, std::uint64_t generation) noexcept {
  if (block >= kMaxBlocks) return {};
  const auto matches = [&] {
    return table_.record(block).word.load() == make_word(generation, BlockState::exported);
  };
  auto& refs = local_[block].refs;
  for (;; std::this_thread::yield()) {
    std::uint32_t held = refs.load();
    while (held != 0 && !refs.compare_exchange_weak(held, held + 1)) {
    }
    if (held != 0) {
      BlockRef ref(this, block);
      return matches() ? std::move(ref) : BlockRef();
    }
    if (inherited_) return {};
    if (BlockRef ref = try_revive(block, generation)) return ref;
    if (!matches()) return {};
    // A thread is dropping the last reference, and the block is about to enter limbo.
  }
}

/// Makes a block that this owner has freed live again, because another process has sent it back.
BlockRef Ledger::try_revive(std::uint32_t block, std::uint64_t generation) noexcept {
  const LockGuard lock(mutex_);
  if (!table_.try_revive(block, generation)) return {};
  local_[block].refs.store(1);
  return {this, block};
}

/// Returns whether the block is in limbo, or was revived: a borrower that read `closing` may ask after the revival. The
/// borrower has raised its slot, so the next release of the block sees the slot.
bool Ledger::is_kept(std::uint32_t block, std::uint64_t generation) const noexcept {
  const LockGuard lock(mutex_);
  return table_.is_in_limbo(block, generation) ||
         (block < kMaxBlocks &&
          table_.record(block).word.load() == make_word(generation, BlockState::exported));
}

void Ledger::add_reference(std::uint32_t block) noexcept {
  local_[block].refs.fetch_add(1, std::memory_order_relaxed);
}

bool Ledger::drop_reference(std::uint32_t block) noexcept {
  return local_[block].refs.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

/// Gives the last reference to pinned pages to LateReleases, until no device uses them. Returns whether it did.
bool Ledger::keeps_late(std::uint32_t block) noexcept {
  LateReleases* const late = LateReleases::active();
  if (!late) [[likely]]
    return false;
  return drop_unless_last(block) || late->keep(*this, block, bytes_of(block, Access::read_write));
}

/// Drops a reference unless it is the last. If several threads drop references, exactly one finds the last.
bool Ledger::drop_unless_last(std::uint32_t block) noexcept {
  auto& refs = local_[block].refs;
  std::uint32_t held = refs.load();
  while (held > 1)
    if (refs.compare_exchange_weak(held, held - 1)) return true;
  return false;
}

void Ledger::release(std::uint32_t block) noexcept {
  if (!keeps_late(block)) release_now(block);
}

void Ledger::release_now(std::uint32_t block) noexcept {
  if (!drop_reference(block)) return;
  if (inherited_) leave_inherited(block);
  else last_references({&block, 1});
}

void Ledger::release_all(std::span<const std::uint32_t> blocks) noexcept {
  constexpr std::size_t kAtOnce = 32;
  std::array<std::uint32_t, kAtOnce> last;
  while (!blocks.empty()) {
    std::size_t count = 0;
    for (const std::uint32_t block : blocks.first(std::min(blocks.size(), kAtOnce)))
      if (!keeps_late(block) && drop_reference(block)) last[count++] = block;
    blocks = blocks.subspan(std::min(blocks.size(), kAtOnce));
    const std::span gone(last.data(), count);
    if (!inherited_) last_references(gone);
    else
      for (const std::uint32_t block : gone) leave_inherited(block);
  }
}

void Ledger::last_references(std::span<const std::uint32_t> blocks) noexcept {
  if (blocks.empty()) return;
  bool limbo = false;
  reclaim([&](auto reusable) {
    for (const std::uint32_t block : blocks)
      if (table_.free_block(block)) reusable(block);
      else limbo = true;
    table_.drain(reusable);
  });
  if (limbo && limbo_) limbo_();
}

void Ledger::leave_inherited(std::uint32_t block) noexcept {
  std::vector<BlockRef> kept;
  if (local_[block].keeps_others) {
    const LockGuard lock(mutex_);
    kept = std::move(kept_[block]);
    kept_.erase(block);
  }
  release_claim(inherited_, table_.record(block), block);
}

Ledger::FreedBlock Ledger::take_out(std::uint32_t block) noexcept {
  const Record& r = table_.record(block);
  Local& local = local_[block];
  FreedBlock freed{{r.segment, r.offset, r.size, local.data}, sources_[local.source], {}};
  if (local.keeps_others) {
    const auto kept = kept_.find(block);
    freed.kept = std::move(kept->second);
    kept_.erase(kept);
  }
  table_.give_back(block);
  return freed;
}

/// Gives all reusable blocks and the references that they kept back, without the lock.
void Ledger::dispose() noexcept {
  while (dispose_some()) mutex_.lock();
}

/// Gives some reusable blocks back, and releases the lock. Returns true if there are more.
bool Ledger::dispose_some() noexcept {
  constexpr std::size_t kAtOnce = 8;
  if (reusable_.empty()) {
    mutex_.unlock();
    return false;
  }
  std::array<FreedBlock, kAtOnce> freed;
  std::size_t count = 0;
  for (; count < kAtOnce && !reusable_.empty(); reusable_.pop_back())
    freed[count++] = take_out(reusable_.back());
  const bool more = !reusable_.empty();
  mutex_.unlock();
  for (const FreedBlock& f : std::span(freed).first(count)) f.from->free(f.extent);
  return more;
}

std::span<std::byte> Ledger::bytes_of(std::uint32_t block, Access) {
  return {local_[block].data, table_.record(block).size};
}

ExportedBlock Ledger::export_block(std::uint32_t block, Access) {
  const MappedBlock spot = export_spot(block);
  const SegmentInfo& segment = segments_.info(spot.info.segment);
  return {spot.info, segment.kind, segment.size, spot.data, segment.identity};
}

MappedBlock Ledger::export_spot(std::uint32_t block) noexcept {
  const Record& r = table_.record(block);
  return {{block, table_.export_block(block), r.segment, r.offset, r.size}, local_[block].data};
}

ExportedMemory Ledger::export_segment(std::uint32_t segment, Access access) const {
  return segments_.export_memory(segment, access);
}

std::byte* Ledger::allow(std::uint32_t block, Access, int ordinal) {
  const BlockInfo info = export_spot(block).info;
  return segments_.allow(info.segment, ordinal) + info.offset;
}

/// Makes the descriptor read-only at the first export, since the table is written through its mapping.
Fd Ledger::export_table() const {
  const LockGuard lock(mutex_);
  if (!file_is_read_only_) file_ = reopen_read_only(file_);
  file_is_read_only_ = true;
  return file_.duplicate();
}

bool Ledger::has_program_ended() const noexcept {
  const LockGuard lock(mutex_);
  return !may_be_marked(file_, table_inode_);
}

bool Ledger::drain() noexcept {
  bool more = false;
  reclaim([&](auto reusable) {
    table_.drain(reusable);
    more = table_.limbo_size() != 0;
  });
  return more;
}

std::size_t Ledger::limbo() const noexcept {
  const LockGuard lock(mutex_);
  return table_.limbo_size();
}

std::size_t Ledger::live() const noexcept {
  const LockGuard lock(mutex_);
  return table_.live();
}

}  // namespace onecopy
