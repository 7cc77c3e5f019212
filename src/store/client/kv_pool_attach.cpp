// SPDX-License-Identifier: Apache-2.0
// How a process becomes a user of a KV pool, enters its lock, and ends what dead users have left.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include <fmt/format.h>

#include "core/point.h"
#include "core/throw_error.h"
#include "os/memfd.h"
#include "store/client/kv_pool_change.h"

namespace onecopy::store {
namespace {

constexpr std::uint64_t kKvPoolMagic = 0x346c6f6f70766b6fULL;  // "okvpool4"
constexpr std::uint32_t kLookForTheDeadMs = 20, kAskAgainMs = 100;
constexpr std::chrono::milliseconds kSlice{20};
constexpr int kSpins = 100;
constexpr std::uint32_t kMaxParts = 64;

Mapping map_control(const Fd& control) {
  Mapping bytes = Mapping::of(control, file_size(control), Access::read_write);
  ::madvise(bytes.data(), bytes.size(), MADV_DONTDUMP);
  return bytes;
}

std::unique_ptr<Mapping> make_own(std::size_t bytes) {
  auto own = std::make_unique<Mapping>(Mapping::anonymous(bytes));
  if (::madvise(own->data(), bytes, MADV_WIPEONFORK) != 0)
    throw_errno("cannot keep the leases of a KV pool from forked children", errno);
  return own;
}

}  // namespace

Fd KvPoolBlocks::make(const KvGeometry& geometry) {
  Fd file = create_memfd("onecopy-kv_pool", KvMemory::bytes_for(geometry));
  format(file, geometry);
  return file;
}

void KvPoolBlocks::format(const Fd& file, const KvGeometry& geometry) {
  const Mapping bytes = Mapping::of(file, KvMemory::bytes_for(geometry), Access::read_write);
  auto* const header = new (bytes.data()) KvHeader{};
  header->geometry = geometry;
  header->next_user = 1;
  header->is_changing = 1;  // makes the first user derive the rest
  header->magic = kKvPoolMagic;
}

KvGeometry KvPoolBlocks::geometry_of(const Fd& control) {
  const std::uint64_t size = file_size(control);
  if (size >= sizeof(KvHeader)) {
    const Mapping head = Mapping::of(control, sizeof(KvHeader), Access::read_only);
    const KvGeometry geometry = head.as<KvHeader>()->geometry;
    if (head.as<KvHeader>()->magic == kKvPoolMagic && geometry.extents <= kKvExtents &&
        KvMemory::bytes_for(geometry) <= size)
      return geometry;
  }
  throw Error(ErrorCode::bad_handle,
              "the memory is not that of a KV pool, or one of another version of onecopy");
}

KvPoolBlocks::KvPoolBlocks(const Fd& control, const KvPoolOptions& options, KvPopulate populate,
                           std::chrono::nanoseconds patience)
    : patience_(patience),
      control_(control.duplicate()),
      bytes_(map_control(control)),
      memory_(bytes_.data(), geometry_of(control)),
      index_(memory_),
      populate_(std::move(populate)),
      copies_from_card_(options.pinned || options.device != kCpu),
      own_(make_own(sizeof(Own) + 2 * sizeof(std::uint32_t) * memory_.geometry.blocks())) {
  check_sizes(options);
  find_space(options);
}

void KvPoolBlocks::check_sizes(const KvPoolOptions& options) const {
  const KvGeometry& g = memory_.geometry;
  const auto refuse = [](const std::string& why) { throw Error(ErrorCode::invalid_argument, why); };
  if (options.block_bytes == 0) refuse("a block has at least one byte");
  if (options.parts == 0 || options.parts > kMaxParts)
    refuse(fmt::format("a block has 1 to {} parts, and {} were asked for", kMaxParts, options.parts));
  const std::uint64_t blocks = std::min<std::uint64_t>(g.records, g.extent_bytes / options.block_bytes);
  if (blocks * options.block_bytes < g.extent_bytes - g.extent_bytes / 8)
    refuse(fmt::format(
        "blocks of {} bytes would waste more than an eighth of extents of {} bytes with at most {} "
        "blocks each: make the KV pool with extent_bytes={}",
        options.block_bytes, g.extent_bytes, g.records,
        options.block_bytes * std::min<std::uint64_t>(g.records, 64)));
}

/// Finds the namespace, or makes it. REQUIRES: no other process of the KV pool's name does the same.
void KvPoolBlocks::find_space(const KvPoolOptions& options) {
  const KvKey name = kv_key(options.space);
  KvSpace* const all = memory_.header->spaces;
  const auto is_it = [&](const KvSpace& s) { return s.per_extent != 0 && s.name == name; };
  KvSpace* const found = std::find_if(all, all + kKvSpaces, is_it);
  const KvSpace& one = found != all + kKvSpaces ? *found : new_space(options);
  space_ = static_cast<std::uint32_t>(&one - all);
  serial_ = one.serial;
  if (one.block_bytes != options.block_bytes || one.parts != options.parts)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "the namespace \"{}\" has blocks of {} bytes in {} parts, and {} bytes in {} parts were "
            "asked for",
            options.space, one.block_bytes, one.parts, options.block_bytes, options.parts));
}

/// Makes a namespace in a free row, or in the row of a namespace without memory, whose users open it again.
KvSpace& KvPoolBlocks::new_space(const KvPoolOptions& options) const {
  const KvGeometry& g = memory_.geometry;
  KvSpace* const all = memory_.header->spaces;
  KvSpace* one = std::find_if(all, all + kKvSpaces, [](const KvSpace& s) { return s.per_extent == 0; });
  if (one == all + kKvSpaces)
    one = std::find_if(all, all + kKvSpaces, [](const KvSpace& s) { return s.extents == 0; });
  if (one == all + kKvSpaces)
    throw_error(ErrorCode::out_of_memory, "the KV pool has {} namespaces already", kKvSpaces);
  ++one->serial;
  one->name = kv_key(options.space);
  one->block_bytes = options.block_bytes;
  one->parts = options.parts;
  one->min = static_cast<std::uint32_t>((options.min_bytes + g.extent_bytes - 1) / g.extent_bytes);
  one->max =
      options.max_bytes == 0 ? g.extents : static_cast<std::uint32_t>(options.max_bytes / g.extent_bytes);
  one->hits = one->misses = one->stored = one->evictions = one->growth_waits = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  one->per_extent =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(g.records, g.extent_bytes / options.block_bytes));
  return *one;
}

/// Returns the leases. A child of the process that made the object leaves all to that process.
KvPoolBlocks::~KvPoolBlocks() {
  if (own().user == 0) {
    static_cast<void>(user_.release());
    static_cast<void>(growth_.release());
    return;
  }
  while (!growth_->stop(std::chrono::minutes(1))) {
  }
  const LockGuard lock(own().mutex);
  if (own().row == 0 || !enter()) return;  // the end of the mark returns them then
  if (memory_.header->is_changing.exchange(1) != 0) index_.derive();
  if (memory_.header->users[own().row - 1].number == own().user) index_.end_user(own().row - 1);
  memory_.header->is_changing = 0;
  memory_.header->lock.unlock(*user_);
}

KvPoolBlocks::Change::Change(KvPoolBlocks& pool) : pool_(pool), lock_(pool.own().mutex) {
  if (pool.own().user == 0) pool.become_user();
  if (!pool.enter()) return;
  entered_ = true;
  KvHeader& header = *pool.memory_.header;
  if (header.is_changing.load(std::memory_order_relaxed) != 0) {
    pool.index_.derive();
    header.derives.fetch_add(1, std::memory_order_relaxed);
  }
  header.is_changing.store(1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  point("kv_pool.begun");
  try {
    begin();
  } catch (...) {
    end();
    throw;
  }
}

void KvPoolBlocks::Change::begin() {
  if (pool_.own().row == 0) pool_.take_row();
  if (pool_.memory_.header->users[pool_.own().row - 1].number != pool_.own().user)
    throw Error(ErrorCode::stale_handle,
                "the other processes of the KV pool took this one for dead: open the KV pool again");
  if (pool_.space().serial != pool_.serial_)
    throw Error(ErrorCode::stale_handle,
                "the namespace had no memory and gave way to another one: open it again");
  pool_.return_owed();
}

void KvPoolBlocks::Change::end() noexcept {
  point("kv_pool.ends");
  std::atomic_signal_fence(std::memory_order_seq_cst);
  pool_.memory_.header->is_changing.store(0, std::memory_order_relaxed);
  pool_.memory_.header->lock.unlock(*pool_.user_);
}

/// Makes this process a user with a new number. The user and the growth thread of a parent stay in that process.
void KvPoolBlocks::become_user() {
  static_cast<void>(user_.release());
  static_cast<void>(growth_.release());
  const std::uint32_t number = memory_.header->next_user.fetch_add(1, std::memory_order_relaxed);
  user_ = std::make_unique<KvUser>(control_, number);
  growth_ = std::make_unique<Worker>("onecopy-kv_pool", [this] { grow_ahead(); });
  own().user = number;
  point("kv_pool.attaches");
}

void KvPoolBlocks::take_row() {
  KvUserRow* const rows = memory_.header->users;
  const auto is_free = [](const KvUserRow& row) { return row.number == 0; };
  KvUserRow* row = std::find_if(rows, rows + kKvUsers, is_free);
  if (row == rows + kKvUsers) {
    end_the_dead(true);
    row = std::find_if(rows, rows + kKvUsers, is_free);
  }
  if (row == rows + kKvUsers)
    throw_error(ErrorCode::out_of_memory, "{} processes use the KV pool already", kKvUsers);
  row->copies_from_card = copies_from_card_ ? 1 : 0;
  row->leased_bytes = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  row->number = own().user;
  own().row = static_cast<std::uint32_t>(row - rows) + 1;
}

/// Takes the lock. Returns false, at once if that is known already, if one user holds the lock during all of the patience.
bool KvPoolBlocks::enter() {
  KvLockWord& word = memory_.header->lock;
  for (int turn = 0; turn < kSpins; ++turn)
    if (word.try_lock(*user_)) return true;
  if (waits_in_vain()) return false;
  std::uint64_t turn = word.turn();
  auto end = std::chrono::steady_clock::now() + patience_;
  const auto slice = [&] {
    const auto now = std::chrono::steady_clock::now();
    if (const std::uint64_t seen = word.turn(); seen != turn) {
      turn = seen;
      end = now + patience_;
    }
    return std::min<std::chrono::nanoseconds>(kSlice, end - now);
  };
  if (word.lock(*user_, slice)) return true;
  own().stuck = turn;
  own().asked = kv_now();
  memory_.header->timeouts.fetch_add(1, std::memory_order_relaxed);
  return false;
}

/// Returns whether the user for which this process has waited in vain still is in the same call. Asks now and then whether
/// that user lives.
bool KvPoolBlocks::waits_in_vain() noexcept {
  Own& own = this->own();
  if (own.stuck == 0 || memory_.header->lock.turn() != own.stuck) {
    own.stuck = 0;
    return false;
  }
  if (kv_now() - own.asked < kAskAgainMs) return true;
  own.asked = kv_now();
  return user_->lives(static_cast<std::uint32_t>(own.stuck) & KvLockWord::kHolder);
}

/// Ends for others the leases that this process has released.
void KvPoolBlocks::return_owed() noexcept {
  KvUserRow& row = memory_.header->users[own().row - 1];
  while (own().owed != 0) {
    const std::uint32_t block = owed()[--own().owed];
    memory_.bits(own().row - 1)[block / 64] &= ~(std::uint64_t{1} << block % 64);
    row.leased_bytes -= space().block_bytes;
    point("kv_pool.returned");
    index_.end_use(block);
  }
}

void KvPoolBlocks::end_the_dead(bool is_urgent) noexcept {
  KvHeader& header = *memory_.header;
  if (!is_urgent && kv_now() - header.looked_at < kLookForTheDeadMs) return;
  header.looked_at = kv_now();
  for (std::uint32_t row = 0; row < kKvUsers; ++row)
    if (const std::uint32_t user = header.users[row].number; user != 0 && !user_->lives(user))
      index_.end_user(row);
}

std::uint32_t KvPoolBlocks::users() const noexcept {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(memory_.header->users, [](const KvUserRow& row) { return row.number != 0; }));
}

}  // namespace onecopy::store
