// SPDX-License-Identifier: Apache-2.0
#include "channel/ring/ring.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "core/throw_error.h"
#include "os/memfd.h"
#include "os/memory_limit.h"
#include "os/process.h"

namespace onecopy {

using std::chrono::nanoseconds;

namespace {

constexpr std::uint32_t kFewestChunks = 4;
constexpr std::uint32_t kMaxChunks = 1U << 20;

/// Returns whether making a ring of a smaller range may succeed after this error: not if no more mappings of any size
/// can be made.
bool may_do_smaller(const Error& error) noexcept {
  constexpr std::size_t kMappingsOfAQueue = 8;  // the max number, with mappings that are made at first use
  return is_shortage(error.code()) && error.code() != ErrorCode::out_of_descriptors &&
         has_room_for_mappings(kMappingsOfAQueue);
}

/// Returns the wanted range, or the part of the address space that leaves room for the other mappings of a process with
/// several queues.
std::uint64_t affordable_range(std::uint64_t wanted) {
  constexpr std::uint64_t kPart = 64;
  const auto left = address_space_left();
  return left ? std::min(wanted, *left / kPart) : wanted;
}

/// Makes an empty ring. Initialises it through a mapping of all of it, which shows that the address space has room for
/// the range.
Fd make_range(const RingOptions& options, std::uint32_t max_chunks) {
  const RingGeometry geometry(max_chunks);
  Fd fd = create_memfd(options.name, geometry.size());
  const Mapping memory = Mapping::of(fd, geometry.size(), Access::read_write);
  auto& header = *memory.as<RingHeader>();
  header.version = kRingVersion;
  header.max_chunks = max_chunks;
  header.max_items = options.max_items;
  header.pid_namespace = pid_namespace();
  header.producers.mutex.init();
  header.consumers.mutex.init();
  header.magic = kRingMagic;
  return fd;
}

Fd make_largest_range(const RingOptions& options) {
  const auto wanted =
      std::clamp<std::uint64_t>(affordable_range(options.range) / kChunkBytes, kFewestChunks, kMaxChunks);
  for (auto chunks = static_cast<std::uint32_t>(std::bit_floor(wanted));; chunks /= 2) {
    try {
      return make_range(options, chunks);
    } catch (const Error& error) {
      if (chunks == kFewestChunks || !may_do_smaller(error)) throw;
    }
  }
}

/// Returns how long a sleep was; a long time if the deadline passed.
nanoseconds length_of_sleep(TimePoint asleep, Deadline deadline) {
  const TimePoint now = std::chrono::steady_clock::now();
  return now < deadline ? now - asleep : kSleepSlice;
}

[[noreturn]] void throw_not_a_ring(const char* why) {
  throw_error(ErrorCode::protocol, "the descriptor is not a queue of this version of onecopy: {}", why);
}

std::size_t checked_size(const Fd& fd) {
  const std::uint64_t size = file_size(fd);
  if (size < RingGeometry(kFewestChunks).size()) throw_not_a_ring("it is too small");
  if ((seals_of(fd) & (kSealShrink | kSealGrow)) != (kSealShrink | kSealGrow))
    throw_not_a_ring("its size is not sealed");
  return size;
}

RingGeometry read_geometry(const Mapping& memory) {
  const auto* header = memory.as<const RingHeader>();
  if (header->magic != kRingMagic || header->version != kRingVersion)
    throw_not_a_ring("it has another magic or version");
  const RingGeometry geometry(header->max_chunks);
  if (!std::has_single_bit(geometry.max_chunks()) || geometry.max_chunks() > kMaxChunks ||
      geometry.size() != memory.size())
    throw_not_a_ring("its size contradicts its header");
  return geometry;
}

}  // namespace

Ring::Ring(const RingOptions& options) : Ring(make_largest_range(options)) {}

Ring::Ring(Fd fd) : Ring(std::move(fd), Fd()) {}

Ring::Ring(Fd fd, const Fd& mapped)
    : fd_(std::move(fd)),
      memory_(Mapping::of(mapped ? mapped : fd_, checked_size(fd_), Access::read_write)),
      header_(memory_.as<RingHeader>()),
      chunks_(fd_.get(), memory_, read_geometry(memory_)),
      extra_(memory_.as<std::byte>(read_geometry(memory_).extra())),
      max_items_(header_->max_items),
      cpus_(static_cast<std::uint32_t>(usable_cpus())) {
  check_namespace();
}

void Ring::check_namespace() const {
  const std::uint64_t ours = pid_namespace();
  if (header_->pid_namespace == ours) return;
  throw_error(ErrorCode::unsupported,
              "this queue was made in PID namespace {}, and this process is in {}: process ids "
              "differ there, and a death could not be told from a life. Run both in one PID "
              "namespace (docker --pid=container:NAME, Kubernetes shareProcessNamespace)",
              header_->pid_namespace, ours);
}

std::uint64_t Ring::size() const noexcept {
  const std::uint64_t taken = head();
  const std::uint64_t put = tail();
  return put > taken ? put - taken : 0;
}

std::uint64_t Ring::put_count() const {
  const std::uint64_t tail = this->tail();
  return first_item(tail) ? tail + 1 : tail;
}

/// Returns the tail after a producer that died or threw around its commit. The slot's stamp tells whether the commit was
/// made.
std::uint64_t Ring::settle(std::uint64_t tail) {
  RingProducers& producers = header_->producers;
  const std::uint64_t intent = producers.intent.load(std::memory_order_relaxed);
  if (intent != tail + 1) RingChunks::throw_damaged("tail", tail);
  const RingSlot* slot = chunks_.find(tail);
  if (!slot || slot->stamp.load() != intent) return tail;
  producers.tail.store(intent, std::memory_order_release);
  return intent;
}

bool Ring::has_space(std::uint64_t tail) {
  head_seen_ = head();
  const std::uint64_t items = tail - head_seen_;
  if (items > max_items_) RingChunks::throw_damaged("number of items", items);
  return items < max_items_;
}

void Ring::check_empty() const {
  const std::uint64_t head = this->head();
  const std::uint64_t tail = this->tail();
  const bool damaged = head < tail ? !first_item(head) : head > tail + 1;
  if (damaged && head == this->head()) RingChunks::throw_damaged("tail", tail);
}

void Ring::lock_contended(RobustMutex& mutex, Deadline deadline) const {
  constexpr int kSpins = 6;
  for (int spins = 0; may_spin() && spins < kSpins; ++spins) {
    for (int i = 0; i < 1 << spins; ++i) relax();
    if (mutex.try_lock()) return;
  }
  using namespace std::chrono_literals;
  if (deadline == kForever) return mutex.lock();
  while (!mutex.try_lock_for(std::max<nanoseconds>(20ms, deadline.left(1s)))) {
    if (deadline.left(1s) > 0s) continue;
    throw Error(ErrorCode::timeout,
                "another process has kept the queue's lock all the time: it is stopped (SIGSTOP, a "
                "debugger); continue or kill it");
  }
}

bool Ring::wait_for_item(Deadline deadline) {
  if (is_closed() && !has_item()) throw_closed();
  const auto look_again = [this] { return is_ready(); };
  const nanoseconds left = deadline.left(kSleepSlice);
  const bool may_wait = left > nanoseconds{0};
  if (may_wait && may_spin() && item_spin_.spin(look_again, left)) return true;
  if (!may_wait) {
    check_empty();
    return false;
  }
  const std::uint32_t armed = header_->items.arm();
  point("ring.take.armed");
  if (look_again()) return true;
  const TimePoint asleep = std::chrono::steady_clock::now();
  if (!sleep_on(header_->items, armed, deadline)) trim_idle();
  item_spin_.note_sleep(length_of_sleep(asleep, deadline));
  // Checked only after the sleep, because reading takes the producers' cache line away from them.
  if (!has_item()) check_empty();
  point("ring.take.woken");
  return true;
}

bool Ring::wait_for_space(Deadline deadline) {
  const nanoseconds left = deadline.left(kSleepSlice);
  if (left == nanoseconds{0}) return false;
  const auto look_again = [this] { return size() < max_items_ || is_closed(); };
  if (may_spin() && space_spin_.spin(look_again, left)) return true;
  const std::uint32_t armed = header_->space.arm();
  point("ring.put.armed");
  if (look_again()) return true;
  const TimePoint asleep = std::chrono::steady_clock::now();
  sleep_on(header_->space, armed, deadline);
  space_spin_.note_sleep(length_of_sleep(asleep, deadline));
  point("ring.put.woken");
  return true;
}

bool Ring::wait(Deadline deadline) {
  do {
    if (is_ready()) return true;
  } while (wait_for_item(deadline));
  return false;
}

bool Ring::wait_to_put(Deadline deadline) {
  do {
    if (!is_full() || is_closed()) return true;
  } while (wait_for_space(deadline));
  return false;
}

void Ring::use_file(const Fd& fd) {
  if (::dup3(fd.get(), fd_.get(), O_CLOEXEC) < 0)
    throw_errno("cannot change the queue's descriptor", errno);
}

void Ring::close(Deadline deadline) {
  {
    // Closes under the lock, so that no put commits after a getter has seen "closed and empty".
    lock(header_->producers.mutex, deadline);
    const std::lock_guard guard(header_->producers.mutex, std::adopt_lock);
    point("ring.close.locked");
    header_->closed.store(1);
    point("ring.close.closed");
  }
  header_->items.notify_all();
  header_->space.notify_all();
  point("ring.close.woken");
}

void RingWatcher::trim() {
  RobustMutex& mutex = ring_.header_->producers.mutex;
  ring_.lock(mutex, kForever);
  const std::lock_guard guard(mutex, std::adopt_lock);
  ring_.trim_locked();
}

/// Settles the tail first, because the stamps of a returned chunk no longer tell whether a dead producer's item was
/// put.
void Ring::trim_locked() {
  settled_tail();
  chunks_.trim(head(), RingChunks::kKeep);
}

void Ring::trim_idle() {
  if (chunks_.count() <= RingChunks::kKeep || !header_->producers.mutex.try_lock()) return;
  const std::lock_guard guard(header_->producers.mutex, std::adopt_lock);
  point("ring.trim.locked");
  trim_locked();
}

void Ring::throw_closed() { throw Error(ErrorCode::closed, "the queue is closed"); }

void Ring::throw_too_long(std::size_t size) {
  throw_error(ErrorCode::invalid_argument, "an item of {} bytes is longer than the {} a queue takes", size,
              kMaxItemBytes);
}

}  // namespace onecopy
