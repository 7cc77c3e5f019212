// SPDX-License-Identifier: Apache-2.0
#include "store/client/kv_pool_blocks.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>

#include <fmt/format.h>

#include "core/point.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "os/process.h"

namespace onecopy::store {
namespace {

constexpr std::uint64_t kKvPoolMagic = 0x32616e657261636fULL;  // "ocarena2"
constexpr std::chrono::milliseconds kLookForTheDead{20};

std::size_t blocks_at() noexcept { return (sizeof(KvPoolHeader) + 63) / 64 * 64; }
std::size_t free_at(std::uint32_t blocks) noexcept {
  return blocks_at() + (std::size_t{blocks} + 1) * sizeof(KvPoolBlock);
}

bool is_dead(int pid, std::uint64_t start) {
  try {
    return has_exited(open_pidfd(pid)) || process_start_time(pid) != start;
  } catch (const Error& error) {
    return error.code() == ErrorCode::peer_died;
  }
}

/// Returns the number of this process's time namespace, in which all start times of a process agree.
std::uint64_t time_namespace() noexcept {
  struct stat info {};
  return ::stat("/proc/self/ns/time", &info) == 0 ? info.st_ino : 0;
}

bool is_of_our_namespaces(const KvPoolHeader& header) noexcept {
  return header.pid_namespace == pid_namespace() && header.time_namespace == time_namespace();
}

[[noreturn]] void refuse(std::uint32_t block, const char* what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("block {} {}", block, what));
}

}  // namespace

/// Holds the mutex as a user of the KV pool, with is_changing set.
class KvPoolBlocks::Change {
 public:
  explicit Change(KvPoolBlocks& kv_pool) : kv_pool_(kv_pool), lock_(locked(kv_pool), std::adopt_lock) {
    if (kv_pool.header_->is_changing.load(std::memory_order_relaxed) != 0) kv_pool.derive();
    kv_pool.header_->is_changing.store(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    point("kv_pool.begun");
    try {
      if (kv_pool.pid_ != current_pid()) kv_pool.attach();
    } catch (...) {
      end();
      throw;
    }
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;
  ~Change() { end(); }

 private:
  static RobustMutex& locked(KvPoolBlocks& kv_pool) {
    if (kv_pool.pid_ != current_pid()) kv_pool.check_namespaces();
    if (kv_pool.header_->mutex.try_lock_for(kv_pool.patience_)) return kv_pool.header_->mutex;
    throw Error(ErrorCode::timeout,
                "a process of the KV pool is stopped in the middle of a call: let it go on, or end it");
  }

  void end() noexcept {
    point("kv_pool.ends");
    std::atomic_signal_fence(std::memory_order_seq_cst);
    kv_pool_.header_->is_changing.store(0, std::memory_order_relaxed);
  }

  KvPoolBlocks& kv_pool_;
  std::lock_guard<RobustMutex> lock_;
};

std::size_t KvPoolBlocks::bytes_for(std::uint32_t blocks) noexcept {
  return free_at(blocks) + std::size_t{blocks} * sizeof(std::uint32_t) * (2 + kKvPoolUsers);
}

void KvPoolBlocks::init(std::byte* memory, std::uint32_t blocks, std::uint64_t block_bytes) {
  auto* const header = new (memory) KvPoolHeader{};
  header->blocks = blocks;
  header->block_bytes = block_bytes;
  header->mutex.init();
  header->is_changing = 1;  // makes the first user derive the rest
  header->pid_namespace = pid_namespace();
  header->time_namespace = time_namespace();
  header->magic = kKvPoolMagic;
}

void KvPoolBlocks::take_over(std::byte* memory, std::size_t bytes) noexcept {
  auto* const header = reinterpret_cast<KvPoolHeader*>(memory);
  if (bytes < sizeof(KvPoolHeader) || header->magic != kKvPoolMagic || bytes < bytes_for(header->blocks) ||
      is_of_our_namespaces(*header))
    return;
  header->mutex.init();
  header->is_changing = 1;
  for (auto& user : header->users) user.pid = 0;
  std::byte* const leases = memory + free_at(header->blocks) + 2 * sizeof(std::uint32_t) * header->blocks;
  std::memset(leases, 0, std::size_t{kKvPoolUsers} * header->blocks * sizeof(std::uint32_t));
  std::atomic_signal_fence(std::memory_order_seq_cst);
  header->pid_namespace = pid_namespace();
  header->time_namespace = time_namespace();
}

KvPoolBlocks::KvPoolBlocks(std::byte* memory, std::size_t bytes, std::uint32_t blocks,
                           std::uint64_t block_bytes, std::chrono::nanoseconds patience)
    : patience_(patience),
      header_(reinterpret_cast<KvPoolHeader*>(memory)),
      blocks_(reinterpret_cast<KvPoolBlock*>(memory + blocks_at())),
      free_(reinterpret_cast<std::uint32_t*>(memory + free_at(blocks))),
      buckets_(free_ + blocks),
      leases_(buckets_ + blocks) {
  if (bytes < sizeof(KvPoolHeader) || header_->magic != kKvPoolMagic)
    throw Error(ErrorCode::bad_handle, "the memory is not that of a KV pool");
  if (header_->blocks != blocks || header_->block_bytes != block_bytes || bytes < bytes_for(blocks))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the KV pool has {} blocks of {} bytes, and {} of {} were asked for",
                            header_->blocks, header_->block_bytes, blocks, block_bytes));
  const Change change(*this);
}

KvPoolBlocks::~KvPoolBlocks() {
  if (pid_ != current_pid()) return;
  try {
    const Change change(*this);
    free_row(user_);
  } catch (const Error&) {  // the lock is damaged: the leases end with the process
  }
}

void KvPoolBlocks::check_namespaces() const {
  if (is_of_our_namespaces(*header_)) return;
  const bool is_pid = header_->pid_namespace != pid_namespace();
  throw Error(
      ErrorCode::unsupported,
      fmt::format(
          "processes of {0} namespace {1} use this KV pool, and this process is in {2}: a death could "
          "not be told from a life there. Run all users in one {0} namespace ({3})",
          is_pid ? "PID" : "time", is_pid ? header_->pid_namespace : header_->time_namespace,
          is_pid ? pid_namespace() : time_namespace(),
          is_pid ? "docker --pid=container:NAME, Kubernetes shareProcessNamespace"
                 : "without unshare --time"));
}

/// Makes this process a user without leases.
void KvPoolBlocks::attach() {
  const auto find_row = [this] {
    return std::ranges::find_if(header_->users, [](const auto& user) { return user.pid == 0; });
  };
  auto* row = find_row();
  if (row == std::end(header_->users)) free_rows_of_the_dead();
  row = find_row();
  if (row == std::end(header_->users))
    throw Error(ErrorCode::out_of_memory,
                fmt::format("{} processes use the KV pool, which is the maximum", kKvPoolUsers));
  row->start = process_start_time(current_pid());
  std::atomic_signal_fence(std::memory_order_seq_cst);
  point("kv_pool.attaches");
  row->pid = current_pid();
  user_ = static_cast<std::uint32_t>(row - header_->users);
  mine_ = leases_of(user_);
  pid_ = current_pid();
}

void KvPoolBlocks::check(std::span<const std::uint32_t> numbers) const {
  for (const std::uint32_t block : numbers)
    if (block >= header_->blocks)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("block {} is not one of the {} of the KV pool", block, header_->blocks));
}

std::vector<std::uint32_t> KvPoolBlocks::allocate(std::uint32_t count) {
  const Change change(*this);
  if (count > header_->free) make_room(count);
  std::vector<std::uint32_t> numbers(count);
  for (std::uint32_t& number : numbers) {
    number = free_[--header_->free];
    point("kv_pool.allocate.taken");
    lease(number);
  }
  return numbers;
}

void KvPoolBlocks::share(std::span<const std::uint32_t> numbers) {
  check(numbers);
  const Change change(*this);
  for (const std::uint32_t block : numbers)
    if (blocks_[block].leases == 0) refuse(block, "is shared, and no process has leased it");
  for (const std::uint32_t block : numbers) lease(block);
}

/// Ends a lease on each block. Decrements this process's counts first; if a number comes too often, restores them and
/// throws, with nothing changed.
void KvPoolBlocks::release(std::span<const std::uint32_t> numbers) {
  check(numbers);
  const Change change(*this);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (mine_[numbers[i]] != 0) {
      --mine_[numbers[i]];
      continue;
    }
    for (const std::uint32_t block : numbers.first(i)) ++mine_[block];
    refuse(numbers[i], "is released more often than this process has leased it");
  }
  point("kv_pool.release.counted");
  for (const std::uint32_t block : numbers) end_lease(block);
}

bool KvPoolBlocks::put(std::string_view key, std::span<const std::uint32_t> numbers) {
  check(numbers);
  if (key.empty() || key.size() > kMaxKvPoolKey)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a key has 1 to {} bytes, and {} came", kMaxKvPoolKey, key.size()));
  if (numbers.empty()) throw Error(ErrorCode::invalid_argument, "an entry has at least one block");
  const Change change(*this);
  if (entry(key) != kNoBlock) return false;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    KvPoolBlock& block = blocks_[numbers[i]];
    if (mine_[numbers[i]] != 0 && block.head == kNoBlock) {
      block.head = numbers.front();
      block.next = i + 1 < numbers.size() ? numbers[i + 1] : kNoBlock;
      continue;
    }
    for (const std::uint32_t before : numbers.first(i)) blocks_[before].head = kNoBlock;
    refuse(numbers[i], mine_[numbers[i]] == 0 ? "is put, and this process has not leased it"
                                              : "is put, and is in an entry already");
  }
  KvPoolBlock& first = blocks_[numbers.front()];
  key.copy(first.key, key.size());
  first.key_bytes = static_cast<std::uint32_t>(key.size());
  first.busy = static_cast<std::uint32_t>(numbers.size());
  first.chain = std::exchange(bucket(key), numbers.front());
  std::atomic_signal_fence(std::memory_order_seq_cst);
  point("kv_pool.put.written");
  first.count = static_cast<std::uint32_t>(numbers.size());
  point("kv_pool.put.done");
  return true;
}

bool KvPoolBlocks::remove(std::string_view key) {
  const Change change(*this);
  const std::uint32_t head = entry(key);
  if (head != kNoBlock) remove_entry(head);
  return head != kNoBlock;
}

std::uint32_t KvPoolBlocks::clear() {
  const Change change(*this);
  std::uint32_t entries = 0;
  for (std::uint32_t head = 0; head < header_->blocks; ++head) {
    if (blocks_[head].count == 0) continue;
    remove_entry(head);
    ++entries;
  }
  return entries;
}

std::vector<std::vector<std::uint32_t>> KvPoolBlocks::find(std::span<const std::string> keys) {
  std::vector<std::vector<std::uint32_t>> found;
  found.reserve(keys.size());
  const Change change(*this);
  for (const std::string& key : keys) {
    const std::uint32_t head = entry(key);
    if (head == kNoBlock) break;
    std::vector<std::uint32_t>& numbers = found.emplace_back(blocks_[head].count);
    std::uint32_t block = head;
    for (std::uint32_t& number : numbers) block = blocks_[number = block].next;
    for (const std::uint32_t number : numbers) lease(number);
    point("kv_pool.find.leased");
  }
  return found;
}

KvPoolStats KvPoolBlocks::stats() {
  const Change change(*this);
  free_rows_of_the_dead();
  const auto users = std::ranges::count_if(header_->users, [](const auto& user) { return user.pid != 0; });
  return {header_->blocks, header_->free, header_->idle, static_cast<std::uint32_t>(users),
          header_->evictions};
}

/// Leases a block. Increments the user's own count first: if the process dies in between, the lease ends with it.
void KvPoolBlocks::lease(std::uint32_t number) noexcept {
  ++mine_[number];
  KvPoolBlock& block = blocks_[number];
  if (block.leases++ == 0 && block.head != kNoBlock && blocks_[block.head].busy++ == 0)
    unlink_idle(block.head);
}

/// Decrements the sum of a block's leases. Without a lease, the block becomes free or its entry may become idle.
void KvPoolBlocks::end_lease(std::uint32_t number) noexcept {
  KvPoolBlock& block = blocks_[number];
  if (--block.leases != 0) return;
  if (block.head == kNoBlock) free_[header_->free++] = number;
  else if (--blocks_[block.head].busy == 0) make_idle(block.head);
}

void KvPoolBlocks::make_idle(std::uint32_t head) noexcept {
  blocks_[head].stamp = ++header_->stamp;
  link_idle(head);
}

/// Appends the entry to the ring of idle entries, so that it is evicted last.
void KvPoolBlocks::link_idle(std::uint32_t head) noexcept {
  KvPoolBlock& ring = blocks_[header_->blocks];
  blocks_[head].before = ring.before;
  blocks_[head].after = header_->blocks;
  blocks_[ring.before].after = head;
  ring.before = head;
  header_->idle += blocks_[head].count;
}

void KvPoolBlocks::unlink_idle(std::uint32_t head) noexcept {
  blocks_[blocks_[head].before].after = blocks_[head].after;
  blocks_[blocks_[head].after].before = blocks_[head].before;
  header_->idle -= blocks_[head].count;
}

/// Frees the blocks of the entry that have no lease. The others are free when their leases end.
void KvPoolBlocks::remove_entry(std::uint32_t head) noexcept {
  if (blocks_[head].busy == 0) unlink_idle(head);
  blocks_[head].count = 0;
  point("kv_pool.remove.gone");
  std::uint32_t* at = &bucket({blocks_[head].key, blocks_[head].key_bytes});
  while (*at != head) at = &blocks_[*at].chain;
  *at = blocks_[head].chain;
  for (std::uint32_t block = head; block != kNoBlock; block = blocks_[block].next) {
    blocks_[block].head = kNoBlock;
    if (blocks_[block].leases == 0) free_[header_->free++] = block;
  }
}

std::uint32_t& KvPoolBlocks::bucket(std::string_view key) noexcept {
  return buckets_[crc32c(std::as_bytes(std::span(key))) % header_->blocks];
}

std::uint32_t KvPoolBlocks::entry(std::string_view key) noexcept {
  std::uint32_t head = bucket(key);
  while (head != kNoBlock && std::string_view(blocks_[head].key, blocks_[head].key_bytes) != key)
    head = blocks_[head].chain;
  return head;
}

/// Evicts idle entries until `count` blocks are free. Evicts none if that is impossible. Throws out_of_memory.
void KvPoolBlocks::make_room(std::uint32_t count) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto can = [&] { return std::uint64_t{header_->free} + header_->idle; };
  if (count > can() || now - std::chrono::nanoseconds(header_->looked_at) >= kLookForTheDead) {
    header_->looked_at = std::chrono::nanoseconds(now).count();
    free_rows_of_the_dead();
  }
  if (count > can())
    throw Error(
        ErrorCode::out_of_memory,
        fmt::format("{} blocks are wanted; of {} are {} free, {} can be evicted, and the others are "
                    "leased",
                    count, header_->blocks, header_->free, header_->idle));
  for (; count > header_->free; ++header_->evictions) remove_entry(blocks_[header_->blocks].after);
}

void KvPoolBlocks::free_row(std::uint32_t user) noexcept {
  std::uint32_t* const leases = leases_of(user);
  for (std::uint32_t block = 0; block < header_->blocks; ++block)
    while (leases[block] != 0) {
      --leases[block];
      point("kv_pool.dead.counted");
      end_lease(block);
    }
  std::atomic_signal_fence(std::memory_order_seq_cst);
  header_->users[user].pid = 0;
}

void KvPoolBlocks::free_rows_of_the_dead() {
  for (std::uint32_t user = 0; user < kKvPoolUsers; ++user)
    if (const auto& row = header_->users[user]; row.pid != 0 && is_dead(row.pid, row.start)) free_row(user);
}

/// Derives what is not primary, in one pass over the blocks for each user and one for the entries.
void KvPoolBlocks::derive() {
  const std::uint32_t n = header_->blocks;
  for (std::uint32_t block = 0; block < n; ++block) {
    blocks_[block].leases = 0;
    blocks_[block].head = kNoBlock;
    buckets_[block] = kNoBlock;
  }
  for (std::uint32_t user = 0; user < kKvPoolUsers; ++user)
    if (header_->users[user].pid != 0)
      for (std::uint32_t block = 0; block < n; ++block) blocks_[block].leases += leases_of(user)[block];
  std::vector<std::uint32_t> idle;
  for (std::uint32_t head = 0; head < n; ++head) {
    KvPoolBlock& first = blocks_[head];
    if (first.count == 0) continue;
    first.busy = 0;
    for (std::uint32_t block = head; block != kNoBlock; block = blocks_[block].next) {
      blocks_[block].head = head;
      first.busy += blocks_[block].leases != 0;
    }
    first.chain = std::exchange(bucket({first.key, first.key_bytes}), head);
    if (first.busy == 0) idle.push_back(head);
  }
  header_->free = header_->idle = 0;
  for (std::uint32_t block = n; block-- > 0;)
    if (blocks_[block].leases == 0 && blocks_[block].head == kNoBlock) free_[header_->free++] = block;
  blocks_[n].before = blocks_[n].after = n;
  std::ranges::sort(idle, {}, [this](std::uint32_t head) { return blocks_[head].stamp; });
  for (const std::uint32_t head : idle) link_idle(head);
}

}  // namespace onecopy::store
