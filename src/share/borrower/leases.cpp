// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/leases.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "onecopy/core/error.h"
#include "os/file.h"
#include "os/memfd.h"

namespace onecopy {
namespace {

/// Says that a thread had no room to record its place, so that readers are unknown.
std::atomic<bool> is_unknown{false};

bool try_register() noexcept {
  return ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

bool try_barrier() noexcept {
  return ::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

/// Makes the earlier stores of all threads visible here, and our stores visible to the later loads of all threads.
bool barrier_of_all_threads() noexcept {
  if (try_barrier()) return true;
  if (errno != EPERM) return false;  // an old kernel, or a sandbox
  return try_register() && try_barrier();
}

}  // namespace

/// Returns a thread's slot when the thread ends, so that another thread can use it.
struct HazardGuard::SlotReturn {
  SlotReturn() noexcept : failed(pthread_key_create(&key, &leave)) {}
  static void leave(void* slot) noexcept {
    mine_ = nullptr;
    static_cast<Slot*>(slot)->is_taken.store(false, std::memory_order_release);
  }
  pthread_key_t key{};
  const int failed;
};

HazardGuard::Slot* HazardGuard::take() noexcept {
  for (Slot* v = all_.load(std::memory_order_acquire); v; v = v->next)
    if (!v->is_taken.load(std::memory_order_relaxed) && !v->is_taken.exchange(true)) return v;
  auto* v = new (std::nothrow) Slot;
  if (!v) return nullptr;
  v->next = all_.load(std::memory_order_relaxed);
  while (!all_.compare_exchange_weak(v->next, v)) {
  }
  return v;
}

HazardGuard::Slot& HazardGuard::begin() noexcept {
  static SlotReturn leaving;
  static Slot nameless;
  Slot* const slot = leaving.failed == 0 ? take() : nullptr;
  if (slot && pthread_setspecific(leaving.key, slot) == 0) return *(mine_ = slot);
  if (slot) slot->is_taken = false;
  is_unknown = true;
  return nameless;
}

void HazardGuard::prepare() noexcept {
  static std::atomic<bool> is_prepared{false};
  if (!is_prepared.exchange(true)) try_register();
}

/// Counts threads by /proc/self/task, which has two links and one more for each thread.
void HazardGuard::prepare_if_single_threaded() noexcept {
  struct stat threads {};
  if (::stat("/proc/self/task", &threads) == 0 && threads.st_nlink == 3) prepare();
}

HazardGuard::Readers HazardGuard::readers_of(const void* place) noexcept {
  if (!barrier_of_all_threads() || is_unknown) return Readers::unknown;
  for (const Slot* v = all_.load(std::memory_order_acquire); v; v = v->next)
    if (v->place.load(std::memory_order_acquire) == place) return Readers::some;
  return Readers::none;
}

void HazardGuard::forget_others() noexcept {
  for (Slot* v = all_.load(std::memory_order_relaxed); v; v = v->next) {
    if (v == mine_) continue;
    v->place.store(nullptr, std::memory_order_relaxed);
    v->is_taken.store(false, std::memory_order_relaxed);
  }
}

Leases::Leases()
    : count_memory_(Mapping::anonymous(kMaxBlocks * sizeof(std::atomic<std::uint32_t>))),
      counts_(count_memory_.as<std::atomic<std::uint32_t>>()) {}

void Leases::set_table(const Fd& file) {
  if (file_size(file) != kTableBytes || (seals_of(file) & kSealShrink) == 0)
    throw Error(ErrorCode::protocol, "a block table of the wrong size, or not sealed against shrinking");
  table_ = Mapping::of(file, kTableBytes, Access::read_only);
  records_ = table_.as<const Record>();
}

void Leases::set_frozen_table(const Fd& file) {
  set_table(file);
  if (!try_copy_records()) throw std::bad_alloc();
  table_.reset();
}

/// Returns how many records the owner has used: it uses them in order, and the word of an unused one is 0.
std::uint32_t Leases::used_of(const Record* records) const noexcept {
  std::uint32_t used = 0;
  while (used < used_ && records[used].word.load() != 0) ++used;
  return used;
}

/// Replaces the table by a copy of its records, which stay as they are. Returns false if memory is short. A thread that
/// finds the copy finds `used_` and `frozen_` as well, because it reads them later.
bool Leases::try_copy_records() noexcept {
  const std::uint32_t used = used_of(records_);
  copied_.reset(new (std::nothrow) Record[used]);
  if (!copied_) return false;
  std::memcpy(static_cast<void*>(copied_.get()), table_.data(), used * sizeof(Record));
  used_ = used;
  frozen_ = true;
  records_ = copied_.get();
  return true;
}

bool Leases::try_freeze() noexcept {
  if (frozen_ && !is_freezing()) return true;
  if (!frozen_ && (HazardGuard::readers_of(this) == HazardGuard::Readers::unknown || !try_copy_records()))
    return true;
  if (HazardGuard::readers_of(this) != HazardGuard::Readers::none) return false;
  table_.reset();
  page_memory_.reset();
  count_memory_.shrink(used_ * sizeof(std::atomic<std::uint32_t>));
  return true;
}

/// Raises the count before the look at `closed_`; try_close() writes and reads in the opposite order. A closing block was
/// not reused, because the owner has ended.
bool Leases::try_claim_frozen(std::uint32_t block, std::uint64_t generation) noexcept {
  if (block >= used_) return false;
  counts_[block].fetch_add(1);
  if (is_held_as(record(block).word.load(), generation) && !closed_) return true;
  counts_[block].fetch_sub(1);
  return false;
}

Fd Leases::copy_table() const {
  const HazardGuard here(this);
  if (closed_)
    throw Error(ErrorCode::owner_died, "the owner of that memory has ended, and none of it is held");
  const Fd copy = create_memfd("onecopy-blocks", kTableBytes);
  const Record* const records = records_;
  write_all(copy, ByteSpan(reinterpret_cast<const std::byte*>(records), used_of(records) * sizeof(Record)));
  add_seals(copy, kSealFutureWrite);
  return reopen_read_only(copy);
}

void Leases::set_page(Mapping page) {
  page_ = claims_in(page);
  transits_ = transits_in(page);
  page_memory_ = std::move(page);
}

std::uint64_t Leases::count() const noexcept {
  const HazardGuard here(this);
  if (closed_) return 0;
  std::uint64_t sum = 0;
  for (std::uint32_t block = 0; block < end(); ++block)
    sum += counts_[block].load(std::memory_order_relaxed);
  return sum;
}

std::vector<LeaseInfo> Leases::list() const {
  const HazardGuard here(this);
  std::vector<LeaseInfo> leases;
  if (closed_) return leases;
  for (std::uint32_t block = 0; block < end(); ++block)
    if (const std::uint32_t claims = counts_[block].load(std::memory_order_relaxed); claims != 0) {
      const Record& r = record(block);
      leases.push_back({block, claims, state_of(r.word.load()), r.segment, r.size});
    }
  return leases;
}

bool Leases::any_in(std::uint32_t segment, std::uint64_t offset, std::uint64_t bytes,
                    const std::set<std::uint32_t>& others) const noexcept {
  const HazardGuard here(this);
  if (closed_) return false;
  for (std::uint32_t block = 0; block < end(); ++block) {
    const Record& r = record(block);
    if (counts_[block].load(std::memory_order_relaxed) != 0 && r.segment == segment &&
        r.offset < offset + bytes && offset < r.offset + r.size && !others.contains(block))
      return true;
  }
  return false;
}

/// Returns one past the highest block of which there may be a lease.
std::uint32_t Leases::end() const noexcept { return frozen_ ? used_.load() : highest_block_ + 1; }

bool Leases::any() const noexcept {
  for (std::uint32_t block = 0; block < end(); ++block)
    if ((frozen_ ? counts_[block].load() : page_.slot(block).load()) != 0) return true;
  return false;
}

bool Leases::try_close() noexcept {
  if (any()) return false;
  closed_ = true;
  if (!any()) return true;
  closed_ = false;
  return false;
}

/// Gives the memory back once no claimer can touch it: a late one may raise a slot and read a word before it sees that
/// the leases are closed. If the kernel cannot tell whether a claimer is left, keeps the addresses, which then read as
/// zero.
bool Leases::try_forget() noexcept {
  const HazardGuard::Readers readers = HazardGuard::readers_of(this);
  if (readers == HazardGuard::Readers::some) return false;
  for (Mapping* memory : {&table_, &page_memory_, &count_memory_})
    if (readers == HazardGuard::Readers::none) memory->reset();
    else memory->forget();
  return true;
}

void Leases::go_on_in_child(Mapping page) noexcept {
  if (frozen_) return;
  if (!page) or_end_child([&] { page = private_claims(std::move(page_memory_)); });
  set_page(std::move(page));
  take_over_claims(page_, highest_block_ + 1, [&](std::uint32_t block) { return counts_[block].load(); });
}

}  // namespace onecopy
