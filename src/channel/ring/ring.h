// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include "channel/ring/ring_chunks.h"
#include "channel/ring/ring_layout.h"
#include "channel/ring/ring_wait.h"
#include "core/point.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "os/fd.h"
#include "os/mapping.h"

namespace onecopy {

/// The options of a new ring.
struct RingOptions {
  std::string name = "queue";   ///< shown in /proc/<pid>/maps
  std::uint64_t max_items = 0;  ///< 0 = as many as memory allows
  /// The address space for items. Reduced to a 64th of what RLIMIT_AS leaves, and halved until RLIMIT_FSIZE permits it.
  std::uint64_t range = 4ULL << 30;
};

/// An item while its getter decides. `bytes` point into shared memory and are valid until then.
struct RingItem {
  std::uint64_t position;
  ByteSpan bytes;
};

enum class TakeResult : std::uint8_t {
  yes,
  deferred,  ///< the getter does not take the item now, which stays the first
  timed_out,
};

/// A queue of small items, in order, between any number of producers and consumers in any processes. Grows until memory
/// ends and survives the death of a user at any instruction.
///
/// Thread safety: all members may be called concurrently, except set_wait_mode(). Invariants, in shared memory:
///  - Item n exists from the moment its slot's stamp becomes n + 1 until head becomes n + 1. The two
///    stores are the only commits; everything else is derived, or done again by the next caller.
///  - Slots from head on are written under the producers' lock, and only before their stamp.
///  - A chunk is reused only after head has passed all of its items.
///  - No lock is held while waiting, and no wait is unbounded.
/// Bytes that other processes write are checked where they are used: a damaged ring makes members throw protocol.
class Ring {
 public:
  /// Makes a ring. Throws out_of_memory, out_of_descriptors, out_of_mappings.
  explicit Ring(const RingOptions& options);
  /// Attaches to a ring that another process or object made. Throws protocol if the descriptor is not a ring's, and
  /// what check_namespace() throws.
  explicit Ring(Fd fd);
  /// Attaches to a ring, but maps `mapped`, another open file of the ring. A mapping keeps its open file, and so the
  /// file's locks, in forked children as long as they map the ring.
  Ring(Fd fd, const Fd& mapped);

  /// Throws unsupported in a process (such as a forked child) of another PID namespace than the maker of the ring.
  void check_namespace() const;

  /// Puts one item: `write(position, space)` fills `space` (kMaxItemBytes) and returns how much of it. `write` runs
  /// under the producers' lock; if `write` throws, nothing was put. The item is taken once head() > position. Returns
  /// false if there was no space by the deadline. Throws closed, out_of_memory (with nothing changed), protocol.
  template <class Write>
  bool put(Write&& write, Deadline deadline = kForever);

  /// Offers the first item to `accept(RingItem) -> bool`, under the consumers' lock. If accept() returns true, the item
  /// is taken out after the return, so objects that die with this process die before the item is gone. If accept()
  /// returns false or throws, the item stays the first, and another consumer may take it. Throws closed if the ring is
  /// closed and empty, protocol.
  template <class Accept>
  TakeResult take(Accept&& accept, Deadline deadline = kForever);

  /// Waits until there is an item, or there will never be one. Returns false at the deadline.
  bool wait(Deadline deadline);
  /// Waits until a put would not wait for space, or would throw. Returns false at the deadline.
  bool wait_to_put(Deadline deadline);

  /// Returns whether take() would not wait now.
  bool is_ready() const { return has_item() || is_closed(); }
  /// Closes the ring: later puts throw, and getters take the remaining items. Wakes all waiters. May be called again.
  /// Throws timeout, with the ring still open, if another process (a stopped one) holds the lock beyond the deadline.
  void close(Deadline deadline = kForever);
  bool is_closed() const noexcept { return header_->closed.load() != 0; }

  std::uint64_t head() const noexcept { return header_->consumers.head.load(); }
  std::uint64_t tail() const noexcept { return header_->producers.tail.load(); }
  /// Returns the number of items ever put: the tail, or one more if the last putter died before it advanced the tail.
  std::uint64_t put_count() const;
  std::uint64_t size() const noexcept;
  std::uint64_t max_items() const noexcept { return max_items_; }
  /// Returns kExtraBytes bytes of shared memory for data that belongs to the items: zero at first, and checked by its
  /// users.
  std::byte* extra() const noexcept { return extra_; }
  /// Reserves memory for a page of the extra bytes, before its first use. Throws out_of_memory.
  void reserve_extra(std::size_t offset, std::size_t size) { chunks_.reserve_extra(offset, size); }
  /// Runs `change` under the producers' lock, for changes of the extra bytes. Throws timeout as close().
  template <class Change>
  void exclusively(Deadline deadline, Change&& change) {
    lock(header_->producers.mutex, deadline);
    const std::lock_guard guard(header_->producers.mutex, std::adopt_lock);
    change();
  }

  /// Sets the number of processes and threads that use the ring, as its creator knows it. If there are more than
  /// processors, no thread spins.
  void set_users(std::uint32_t users) noexcept { header_->users.store(users); }

  enum class WaitMode : std::uint8_t { adaptive, block };
  void set_wait_mode(WaitMode mode) noexcept { wait_mode_ = mode; }

  /// Returns the descriptor, for giving the ring to another process.
  const Fd& fd() const noexcept { return fd_; }
  /// Replaces the ring's open file by another one of the same ring, under the same descriptor number.
  void use_file(const Fd& fd);
  /// Forgets the parent's threads, which do not wait here. REQUIRES: this is a forked child.
  void forget_waiting() noexcept {
    item_spin_.forget_turn();
    space_spin_.forget_turn();
  }

 private:
  friend class RingWatcher;

  template <class Write>
  bool try_put(Write& write, Deadline deadline);
  template <class Accept>
  TakeResult try_take(Accept& accept, Deadline deadline);

  RingSlot* slot_to_fill(std::uint64_t& position);
  std::uint64_t settled_tail();
  std::uint64_t settle(std::uint64_t tail);
  bool has_space(std::uint64_t tail);
  RingSlot* first_item(std::uint64_t head) const {
    RingSlot* slot = chunks_.find(head);
    return slot && slot->stamp.load() == head + 1 ? slot : nullptr;
  }
  bool has_item() const { return first_item(head()) != nullptr; }
  /// Throws protocol if the tail says that there is an item and its slot does not.
  void check_empty() const;
  static ByteSpan bytes_of(const RingSlot& slot) {
    const std::uint32_t size = slot.size;
    if (size > kMaxItemBytes) RingChunks::throw_damaged("item length", size);
    return {slot.payload, size};
  }

  /// Locks the mutex. Throws timeout if another process (a stopped one) holds the lock beyond the deadline.
  void lock(RobustMutex& mutex, Deadline deadline) const {
    if (!mutex.try_lock()) lock_contended(mutex, deadline);
  }
  void lock_contended(RobustMutex& mutex, Deadline deadline) const;
  /// Waits at most a slice. Returns false if the deadline has passed, and true if the caller must look again.
  bool wait_for_item(Deadline deadline);
  bool is_full() const noexcept { return max_items_ != 0 && size() >= max_items_; }
  bool wait_for_space(Deadline deadline);
  bool may_spin() const noexcept {
    return wait_mode_ == WaitMode::adaptive && cpus_ > 1 &&
           header_->users.load(std::memory_order_relaxed) <= cpus_;
  }
  [[noreturn]] static void throw_closed();
  [[noreturn]] static void throw_too_long(std::size_t size);
  void trim_idle();
  /// Gives drained memory back. REQUIRES: the producers' lock.
  void trim_locked();

  Fd fd_;
  Mapping memory_;
  RingHeader* header_;
  RingChunks chunks_;
  std::byte* extra_;
  std::uint64_t max_items_;
  std::uint32_t cpus_;
  WaitMode wait_mode_ = WaitMode::adaptive;
  std::uint64_t head_seen_ = 0;  ///< the head was at least here; guarded by the producers' lock
  SpinBudget item_spin_;
  SpinBudget space_spin_;
};

/// A view of a ring for a thread that neither puts nor takes items.
///
/// Thread safety: all members may be called concurrently. REQUIRES: the ring outlives this object.
class RingWatcher {
 public:
  explicit RingWatcher(Ring& ring) noexcept : ring_(ring) {}

  /// Sleeps until the ring is_ready() or `stop()`, for a slice at most.
  template <class Stop>
  void doze(Stop&& stop);
  /// Wakes the next sleeper: a watcher may have been woken in a getter's place.
  void pass_on_wake() noexcept { ring_.header_->items.notify_one(); }
  /// Wakes all that wait for items, so that they look at their conditions.
  void wake_all() noexcept { ring_.header_->items.notify_all(); }
  /// Returns the bytes of memory behind the ring now.
  std::uint64_t committed() const noexcept { return ring_.chunks_.committed() * kChunkBytes; }
  /// Gives drained memory back now instead of after a while.
  void trim();

 private:
  Ring& ring_;
};

template <class Write>
bool Ring::put(Write&& write, Deadline deadline) {
  while (!try_put(write, deadline))
    if (!wait_for_space(deadline)) return false;
  point("ring.put.unlocked");
  header_->items.notify_one();
  return true;
}

template <class Write>
bool Ring::try_put(Write& write, Deadline deadline) {
  RingProducers& producers = header_->producers;
  lock(producers.mutex, deadline);
  const std::lock_guard guard(producers.mutex, std::adopt_lock);
  point("ring.put.locked");
  std::uint64_t position = 0;
  RingSlot* slot = slot_to_fill(position);
  if (!slot) return false;
  const std::size_t size = write(position, std::span<std::byte>(slot->payload));
  if (size > kMaxItemBytes) throw_too_long(size);
  slot->size = static_cast<std::uint32_t>(size);
  point("ring.put.written");
  producers.intent.store(position + 1, std::memory_order_relaxed);
  point("ring.put.intended");
  slot->stamp.store(position + 1);  // The commit.
  point("ring.put.committed");
  producers.tail.store(position + 1, std::memory_order_release);
  point("ring.put.settled");
  return true;
}

/// Returns the slot of the next item and its position, or nullptr if the bound is reached.
inline RingSlot* Ring::slot_to_fill(std::uint64_t& position) {
  if (is_closed()) throw_closed();
  position = settled_tail();
  if (max_items_ != 0 && position - head_seen_ >= max_items_ && !has_space(position)) return nullptr;
  RingSlot* slot = chunks_.find(position);
  return slot ? slot : chunks_.assign(position, head());
}

inline std::uint64_t Ring::settled_tail() {
  const std::uint64_t tail = header_->producers.tail.load(std::memory_order_relaxed);
  return header_->producers.intent.load(std::memory_order_relaxed) == tail ? tail : settle(tail);
}

template <class Stop>
void RingWatcher::doze(Stop&& stop) {
  WaitWord& items = ring_.header_->items;
  const std::uint32_t armed = items.arm();
  point("ring.doze.armed");
  if (ring_.is_ready() || stop()) return;
  if (!sleep_on(items, armed, kForever)) ring_.trim_idle();
}

template <class Accept>
TakeResult Ring::take(Accept&& accept, Deadline deadline) {
  TakeResult taken = TakeResult::timed_out;
  do {
    if (has_item()) taken = try_take(accept, deadline);
    if (taken != TakeResult::timed_out) break;
  } while (wait_for_item(deadline));
  if (taken == TakeResult::yes) {
    point("ring.take.unlocked");
    if (max_items_) header_->space.notify_one();
  }
  return taken;
}

template <class Accept>
TakeResult Ring::try_take(Accept& accept, Deadline deadline) {
  RingConsumers& consumers = header_->consumers;
  lock(consumers.mutex, deadline);
  const std::lock_guard guard(consumers.mutex, std::adopt_lock);
  point("ring.take.locked");
  const std::uint64_t head = consumers.head.load(std::memory_order_relaxed);
  const RingSlot* slot = first_item(head);
  if (!slot) return TakeResult::timed_out;
  point("ring.take.found");
  if (!accept(RingItem{head, bytes_of(*slot)})) return TakeResult::deferred;
  point("ring.take.accepted");
  // The commit. Only putters at a bound may be waiting for it.
  consumers.head.store(head + 1, max_items_ ? std::memory_order_seq_cst : std::memory_order_release);
  point("ring.take.committed");
  return TakeResult::yes;
}

}  // namespace onecopy
