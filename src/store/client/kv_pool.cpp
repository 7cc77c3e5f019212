// SPDX-License-Identifier: Apache-2.0
#include "onecopy/store/kv_pool.h"

#include <fmt/format.h>

#include "core/moved_from.h"
#include "onecopy/core/error.h"
#include "os/mapping.h"
#include "os/memfd.h"
#include "os/read_lock.h"
#include "store/client/as_is.h"
#include "store/client/kv_pool_blocks.h"
#include "store/client/kv_pool_lock.h"
#include "store/client/state.h"

namespace onecopy::store {

struct KvPool::State {
  Mapping use;  ///< of mark_use()
  Tensor blocks;
  Mapping memory;        ///< of the leases and keys, which lie on the host
  KvPoolBlocks control;  ///< destroyed before the memory
};

namespace {

constexpr std::uint32_t kMaxBlocks = 1u << 28;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 48;

void check_sizes(std::uint32_t blocks, std::uint64_t block_bytes) {
  if (blocks == 0 || blocks > kMaxBlocks || block_bytes == 0 || block_bytes > kMaxBytes / blocks)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a KV pool has 1 to {} blocks of at least one byte, and at most {} bytes; {} "
                            "blocks of {} bytes were asked for",
                            kMaxBlocks, kMaxBytes, blocks, block_bytes));
}

/// Returns the memory of the leases and keys, which no process can make smaller.
Fd make_control(std::uint32_t blocks, std::uint64_t block_bytes) {
  const std::size_t bytes = KvPoolBlocks::bytes_for(blocks);
  Fd memory = create_memfd("onecopy-kv_pool", bytes);
  KvPoolBlocks::init(Mapping::of(memory, bytes, Access::read_write).data(), blocks, block_bytes);
  return memory;
}

/// Publishes a version whose last descriptor is the memory of the leases and keys.
void make_kv_pool(Client& client, const std::string& name, std::uint32_t blocks, std::uint64_t block_bytes,
                  Device device) {
  check_outlives_its_maker(device);
  Table table = table_for(device, {});
  const Layout layout(DType::u8, {std::int64_t{blocks}, static_cast<std::int64_t>(block_bytes)});
  table.rows = {{"blocks", layout, 0}};
  const std::uint64_t bytes = place(table.rows);
  VersionRecord version = record_of(name, device, MappedMemory::size_for(device, bytes), 1);
  version.kind = VersionKind::kv_pool;
  const ReservedRoom reserved = client.reserve(version, Deadline::after(kKeeperPatience));
  const BlockRef block = MappedMemory::create(device, bytes);
  const auto& memory = *static_cast<MappedMemory*>(block.group());
  table.size = memory.size();
  ExportedMemory exported = memory.export_chunks(Access::read_write);
  describe(exported, table);
  exported.fds.push_back(make_control(blocks, block_bytes));
  publish_version(client, table, version, exported.fds);
}

void check_kv_pool(const std::string& name, const VersionRecord& version, const Table& table,
                   Device device) {
  if (version.kind != VersionKind::kv_pool || table.rows.size() != 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is an object, not a KV pool", name));
  if (device_of(table) != device)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the KV pool \"{}\" lies on {}, and {} was asked for", name,
                            device_of(table).str(), device.str()));
}

/// Shows processes of other namespaces that this process uses the KV pool, as long as the mapping lives here or in a forked
/// child: the mapping keeps a file open that is locked for reading.
Mapping mark_use(const Fd& control) {
  const Fd own = reopen_read_only(control);
  lock_for_reading(own);
  return Mapping::of(own, sizeof(KvPoolHeader), Access::read_only);
}

}  // namespace

KvPool Store::kv_pool(const std::string& name, std::uint32_t blocks, std::uint64_t block_bytes,
                      Device device, bool pinned) {
  check_sizes(blocks, block_bytes);
  const std::string home = client().home(Deadline::after(kKeeperPatience));
  const KvPoolLock lock(home, name, Deadline::after(kKeeperPatience));
  const auto open = [&] { return client().open(name, 0, nullptr, Deadline::after(kKeeperPatience)); };
  std::optional<Client::Reading> reading;
  try {
    reading = open();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::stale_handle) throw;
    make_kv_pool(client(), name, blocks, block_bytes, device);
    reading = open();
  }
  std::vector<Fd> files = reading->files();
  OpenTable opened(files.front());
  const Table& table = opened.table;
  const VersionRecord version = reading->version();
  check_kv_pool(name, version, table, device);
  const Layout layout = table.rows.front().layout;
  const std::uint64_t bytes = file_size(files.back());
  Mapping memory = Mapping::of(files.back(), bytes, Access::read_write);
  const bool is_used = may_be_read(files.back());  // the lock of the name is held
  Mapping use = mark_use(files.back());
  std::vector<ExportedMemory> parts = memory_of(table, std::move(files));
  BlockRef block =
      MappedMemory::open(device, std::move(parts), {std::move(opened.table), version, std::move(*reading)},
                         Access::read_write);
  const auto& mapped = *static_cast<MappedMemory*>(block.group());
  if (pinned && device == kCpu) mapped.pin();
  std::byte* const data = mapped.data();
  Tensor tensor(std::move(block), data, layout, device, Access::read_write);
  std::byte* const control = memory.data();
  if (!is_used) KvPoolBlocks::take_over(control, bytes);
  return KvPool(std::shared_ptr<KvPool::State>(new KvPool::State{
      std::move(use), std::move(tensor), std::move(memory), {control, bytes, blocks, block_bytes}}));
}

KvPool::State& KvPool::state() const { return of_object(state_, "KvPool"); }

std::vector<std::uint32_t> KvPool::allocate(std::uint32_t count) { return state().control.allocate(count); }
void KvPool::share(std::span<const std::uint32_t> numbers) { state().control.share(numbers); }
void KvPool::release(std::span<const std::uint32_t> numbers) { state().control.release(numbers); }
bool KvPool::put(std::string_view key, std::span<const std::uint32_t> numbers) {
  return state().control.put(key, numbers);
}
bool KvPool::remove(std::string_view key) { return state().control.remove(key); }
std::uint32_t KvPool::clear() { return state().control.clear(); }
std::vector<std::vector<std::uint32_t>> KvPool::find(std::span<const std::string> keys) {
  return state().control.find(keys);
}
KvPoolStats KvPool::stats() { return state().control.stats(); }

Tensor KvPool::memory() const { return state().blocks; }

}  // namespace onecopy::store
