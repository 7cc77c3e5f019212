// SPDX-License-Identifier: Apache-2.0
#include "onecopy/store/arena.h"

#include <fmt/format.h>

#include "core/moved_from.h"
#include "onecopy/core/error.h"
#include "os/mapping.h"
#include "os/memfd.h"
#include "os/read_lock.h"
#include "store/client/arena_blocks.h"
#include "store/client/arena_lock.h"
#include "store/client/as_is.h"
#include "store/client/state.h"

namespace onecopy::store {

struct Arena::State {
  Mapping use;  ///< of mark_use()
  Tensor blocks;
  Mapping memory;       ///< of the leases and keys, which lie on the host
  ArenaBlocks control;  ///< destroyed before the memory
};

namespace {

constexpr std::uint32_t kMaxBlocks = 1u << 28;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 48;

void check_sizes(std::uint32_t blocks, std::uint64_t block_bytes) {
  if (blocks == 0 || blocks > kMaxBlocks || block_bytes == 0 || block_bytes > kMaxBytes / blocks)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("an arena has 1 to {} blocks of at least one byte, and at most {} bytes; {} "
                            "blocks of {} bytes were asked for",
                            kMaxBlocks, kMaxBytes, blocks, block_bytes));
}

/// Returns the memory of the leases and keys, which no process can make smaller.
Fd make_control(std::uint32_t blocks, std::uint64_t block_bytes) {
  const std::size_t bytes = ArenaBlocks::bytes_for(blocks);
  Fd memory = create_memfd("onecopy-arena", bytes);
  ArenaBlocks::init(Mapping::of(memory, bytes, Access::read_write).data(), blocks, block_bytes);
  return memory;
}

/// Publishes a version whose last descriptor is the memory of the leases and keys.
void make_arena(Client& client, const std::string& name, std::uint32_t blocks, std::uint64_t block_bytes,
                Device device) {
  check_outlives_its_maker(device);
  Table table = table_for(device, {});
  const Layout layout(DType::u8, {std::int64_t{blocks}, static_cast<std::int64_t>(block_bytes)});
  table.rows = {{"blocks", layout, 0}};
  const std::uint64_t bytes = place(table.rows);
  VersionRecord version = record_of(name, device, MappedMemory::size_for(device, bytes), 1);
  version.kind = VersionKind::arena;
  const ReservedRoom reserved = client.reserve(version, Deadline::after(kKeeperPatience));
  const BlockRef block = MappedMemory::create(device, bytes);
  const auto& memory = *static_cast<MappedMemory*>(block.group());
  table.size = memory.size();
  ExportedMemory exported = memory.export_chunks(Access::read_write);
  describe(exported, table);
  exported.fds.push_back(make_control(blocks, block_bytes));
  publish_version(client, table, version, exported.fds);
}

void check_arena(const std::string& name, const VersionRecord& version, const Table& table, Device device) {
  if (version.kind != VersionKind::arena || table.rows.size() != 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is an object, not an arena", name));
  if (device_of(table) != device)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the arena \"{}\" lies on {}, and {} was asked for", name,
                            device_of(table).str(), device.str()));
}

/// Shows processes of other namespaces that this process uses the arena, as long as the mapping lives here or in a forked
/// child: the mapping keeps a file open that is locked for reading.
Mapping mark_use(const Fd& control) {
  const Fd own = reopen_read_only(control);
  lock_for_reading(own);
  return Mapping::of(own, sizeof(ArenaHeader), Access::read_only);
}

}  // namespace

Arena Store::arena(const std::string& name, std::uint32_t blocks, std::uint64_t block_bytes, Device device,
                   bool pinned) {
  check_sizes(blocks, block_bytes);
  const std::string home = client().home(Deadline::after(kKeeperPatience));
  const ArenaLock lock(home, name, Deadline::after(kKeeperPatience));
  const auto open = [&] { return client().open(name, 0, nullptr, Deadline::after(kKeeperPatience)); };
  std::optional<Client::Reading> reading;
  try {
    reading = open();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::stale_handle) throw;
    make_arena(client(), name, blocks, block_bytes, device);
    reading = open();
  }
  std::vector<Fd> files = reading->files();
  OpenTable opened(files.front());
  const Table& table = opened.table;
  const VersionRecord version = reading->version();
  check_arena(name, version, table, device);
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
  if (!is_used) ArenaBlocks::take_over(control, bytes);
  return Arena(std::shared_ptr<Arena::State>(new Arena::State{
      std::move(use), std::move(tensor), std::move(memory), {control, bytes, blocks, block_bytes}}));
}

Arena::State& Arena::state() const { return of_object(state_, "Arena"); }

std::vector<std::uint32_t> Arena::allocate(std::uint32_t count) { return state().control.allocate(count); }
void Arena::share(std::span<const std::uint32_t> numbers) { state().control.share(numbers); }
void Arena::release(std::span<const std::uint32_t> numbers) { state().control.release(numbers); }
bool Arena::put(std::string_view key, std::span<const std::uint32_t> numbers) {
  return state().control.put(key, numbers);
}
bool Arena::remove(std::string_view key) { return state().control.remove(key); }
std::uint32_t Arena::clear() { return state().control.clear(); }
std::vector<std::vector<std::uint32_t>> Arena::find(std::span<const std::string> keys) {
  return state().control.find(keys);
}
ArenaStats Arena::stats() { return state().control.stats(); }

Tensor Arena::memory() const { return state().blocks; }

}  // namespace onecopy::store
