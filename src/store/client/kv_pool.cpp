// SPDX-License-Identifier: Apache-2.0
#include "onecopy/store/kv_pool.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "core/moved_from.h"
#include "core/throw_error.h"
#include "device/backend.h"
#include "os/memfd.h"
#include "os/memory_limit.h"
#include "os/page_tables.h"
#include "store/client/as_is.h"
#include "store/client/kv_pool_blocks.h"
#include "store/client/kv_pool_files.h"
#include "store/client/kv_pool_lock.h"
#include "store/client/state.h"

namespace onecopy::store {

struct KvPool::State {
  Tensor memory;
  KvPoolBlocks control;
  std::uint64_t block_bytes;
};

namespace {

constexpr std::uint64_t kMiB = 1 << 20, kMaxBytes = std::uint64_t{1} << 48;
constexpr std::uint32_t kMaxRecords = 1024;
constexpr std::uint64_t kUsualBlock = 4096;  ///< blocks of this size fit small extents without a rest

/// Returns how a new KV pool is divided. Throws invalid_argument.
KvGeometry geometry_for(const std::string& name, const KvPoolOptions& options) {
  const std::uint64_t budget = options.budget;
  if (budget == 0)
    throw_error(ErrorCode::invalid_argument,
                "there is no KV pool \"{}\": give budget=, the bytes of all its blocks, to make it", name);
  std::uint64_t extent = options.extent_bytes;
  if (extent == 0) {
    extent = std::min(budget, std::clamp(budget / 256 / kMiB * kMiB, 64 * kMiB, 1024 * kMiB));
    const std::uint64_t block = std::clamp<std::uint64_t>(options.block_bytes, 1, budget);
    // An extent has few records, which small blocks would not fill; and a KV pool has few extents.
    if (options.block_bytes != 0)
      extent = std::min(extent, std::max(kMaxRecords * block, budget / kKvExtents + 1));
    if (extent % block > extent / 8) extent = std::max<std::uint64_t>(extent / block, 1) * block;
  }
  const std::uint64_t extents = budget / extent;
  if (budget > kMaxBytes || extents == 0 || extents > kKvExtents)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "a KV pool has 1 to {} extents and at most {} bytes; a budget of {} bytes in extents of {} "
            "bytes was asked for",
            kKvExtents, kMaxBytes, budget, extent));
  const std::uint64_t smallest =
      std::min(options.block_bytes == 0 ? kUsualBlock : options.block_bytes, kUsualBlock);
  const auto records = std::clamp<std::uint64_t>(extent / smallest, 1, kMaxRecords);
  return {static_cast<std::uint32_t>(extents), static_cast<std::uint32_t>(records), extent};
}

/// Returns new memory for all blocks. Pages of the host are allocated later if the system then reports that it has none.
ExportedMemory memory_for(const KvPoolOptions& options, std::uint64_t bytes) {
  if (options.device != kCpu || options.pinned || !can_populate())
    return MappedMemory::create_for_others(options.device, bytes);
  ExportedMemory memory{SegmentKind::memfd, bytes, {}, {}};
  memory.fds.push_back(create_memfd("onecopy-kv_pool", bytes));
  return memory;
}

/// Publishes a version whose last descriptor is the control memory. Its memory is that of an earlier keeper if there are
/// files.
void make_kv_pool(Client& client, const std::string& home, const std::string& name,
                  const KvPoolOptions& options) {
  std::optional<KvPoolFiles> files = KvPoolFiles::find(home, name);
  const KvGeometry geometry =
      files ? KvPoolBlocks::geometry_of(files->control) : geometry_for(name, options);
  const Device device = files ? kCpu : options.device;
  check_outlives_its_maker(device);
  Table table = table_for(device, {});
  const Layout layout(DType::u8, {static_cast<std::int64_t>(geometry.extents * geometry.extent_bytes)});
  table.rows = {{"blocks", layout, 0}};
  const std::uint64_t bytes = assign_offsets(table.rows);
  VersionRecord version = record_of(name, device, MappedMemory::size_for(device, bytes), 1);
  version.kind = VersionKind::kv_pool;
  const ReservedRoom reserved = client.reserve(version, Deadline::after(kKeeperPatience));
  if (options.outlives_keeper && !files) {
    if (device != kCpu)
      throw_error(ErrorCode::unsupported, "memory of {} ends with the keeper", device.str());
    files = KvPoolFiles::make(home, name, geometry, version.bytes);
  }
  ExportedMemory exported{SegmentKind::shared_file, version.bytes, {}, {}};
  if (files) exported.fds.push_back(std::move(files->memory));
  else exported = memory_for(options, version.bytes);
  table.size = exported.size;
  describe(exported, table);
  exported.fds.push_back(files ? std::move(files->control) : KvPoolBlocks::make(geometry));
  publish_version(client, table, version, exported.fds);
}

void check_kv_pool(const std::string& name, const VersionRecord& version, const Table& table,
                   Device device) {
  if (version.kind != VersionKind::kv_pool || table.rows.size() != 1)
    throw_error(ErrorCode::invalid_argument, "\"{}\" is an object, not a KV pool", name);
  if (device_of(table) != device)
    throw_error(ErrorCode::invalid_argument, "the KV pool \"{}\" lies on {}, and {} was asked for", name,
                device_of(table).str(), device.str());
}

/// Throws invalid_argument if the KV pool has another budget or other extents than were asked for.
void check_geometry(const std::string& name, const KvGeometry& geometry, const KvPoolOptions& options) {
  const std::uint64_t bytes = geometry.extents * geometry.extent_bytes;
  const bool is_other = options.budget != 0 && options.budget / geometry.extent_bytes != geometry.extents;
  if (!is_other && (options.extent_bytes == 0 || options.extent_bytes == geometry.extent_bytes)) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format(
          "the KV pool \"{}\" has {} bytes in extents of {} bytes, and {} in extents of {} were asked "
          "for (0: as it is)",
          name, bytes, geometry.extent_bytes, options.budget, options.extent_bytes));
}

bool has_files(const Table& table) noexcept {
  return table.parts.front().kind == static_cast<std::uint8_t>(SegmentKind::shared_file);
}

/// Returns whether a file, such as the memory or the control memory of a KV pool, has lost its name.
bool is_removed(const Fd& file) noexcept {
  struct stat info {};
  return ::fstat(file.get(), &info) == 0 && info.st_nlink == 0;
}

/// Throws invalid_argument if the KV pool is to outlive the keeper, and was made without that option.
void check_outlives_keeper(const std::string& name, const Table& table, const KvPoolOptions& options) {
  if (options.outlives_keeper && !has_files(table))
    throw_error(ErrorCode::invalid_argument,
                "the KV pool \"{}\" was made without outlives_keeper: delete it first", name);
}

/// Returns what allocates memory of the host. Other memory is there from the beginning.
KvPopulate populate_for(std::byte* data, const KvGeometry& geometry, Device device) {
  if (device != kCpu) return {};
  for (const int advice : {MADV_DONTDUMP, MADV_HUGEPAGE})
    ::madvise(data, geometry.extents * geometry.extent_bytes, advice);
  return [data, extent = geometry.extent_bytes](std::uint64_t offset, std::uint64_t bytes) {
    constexpr std::uint64_t kPage = 4096;
    const std::uint64_t begin = offset / kPage * kPage;
    std::byte* const at = data + begin;
    const std::uint64_t size = offset + bytes - begin;
    try {
      // A control group ends processes instead of refusing. The rest of the extent is to fit, too.
      require_memory(size, (extent - (offset + bytes) % extent) % extent);
    } catch (const std::exception&) {
      return false;
    }
    return ::madvise(at, size, PageTableFiller::kAbsent) == 0 || errno == EINVAL;  // before Linux 5.14
  };
}

}  // namespace

KvPool Store::kv_pool(const std::string& name, const KvPoolOptions& options) {
  const std::string home = client().home(Deadline::after(kKeeperPatience));
  const KvPoolLock lock(home, name, Deadline::after(kKeeperPatience));
  const auto open = [&] { return client().open(name, 0, nullptr, Deadline::after(kKeeperPatience)); };
  std::optional<Client::Reading> reading;
  try {
    reading = open();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::stale_handle) throw;
    make_kv_pool(client(), home, name, options);
    reading = open();
  }
  std::vector<Fd> files = reading->files();
  OpenTable opened(files.front());
  const VersionRecord version = reading->version();
  check_kv_pool(name, version, opened.table, options.device);
  check_outlives_keeper(name, opened.table, options);
  const Layout layout = opened.table.rows.front().layout;
  const Fd control = files.back().duplicate();
  const KvGeometry geometry = KvPoolBlocks::geometry_of(control);
  check_geometry(name, geometry, options);
  std::vector<ExportedMemory> parts = memory_of(opened.table, std::move(files));
  BlockRef block =
      MappedMemory::open(options.device, std::move(parts),
                         {std::move(opened.table), version, std::move(*reading)}, Access::read_write);
  const auto& mapped = *static_cast<MappedMemory*>(block.group());
  if (options.pinned && options.device == kCpu) mapped.pin();
  std::byte* const data = mapped.data();
  Tensor memory(std::move(block), data, layout, options.device, Access::read_write);
  return KvPool(std::shared_ptr<KvPool::State>(
      new KvPool::State{std::move(memory),
                        {control, options, populate_for(data, geometry, options.device)},
                        options.block_bytes}));
}

std::vector<KvPoolStats> Store::kv_pool_stats(const std::string& name) {
  const std::optional<Client::Reading> reading =
      client().open(name, 0, nullptr, Deadline::after(kKeeperPatience));
  const std::vector<Fd> files = reading->files();
  const OpenTable opened(files.front());
  check_kv_pool(name, reading->version(), opened.table, device_of(opened.table));
  std::vector<KvPoolStats> all = KvPoolBlocks::stats_of(files.back());
  const bool is_lost = has_files(opened.table) && std::any_of(files.begin() + 1, files.end(), is_removed);
  for (KvPoolStats& one : all) one.files_removed = is_lost;
  return all;
}

KvPool::State& KvPool::state() const { return of_object(state_, "KvPool"); }

std::vector<std::uint32_t> KvPool::allocate(std::uint32_t count) { return state().control.allocate(count); }
void KvPool::release(std::span<const std::uint32_t> numbers) { state().control.release(numbers); }
bool KvPool::put(std::string_view key, std::uint32_t number) { return state().control.put(key, number); }
std::vector<std::optional<std::uint32_t>> KvPool::write(std::span<const std::string> keys,
                                                        std::uint32_t group) {
  return state().control.write(keys, group);
}
void KvPool::complete(std::span<const std::uint32_t> numbers, std::uint32_t part) {
  state().control.complete(numbers, part);
}
void KvPool::fail(std::span<const std::uint32_t> numbers) { state().control.fail(numbers); }
std::vector<std::uint64_t> KvPool::tickets(std::span<const std::uint32_t> numbers) {
  return state().control.tickets(numbers);
}
std::vector<std::uint32_t> KvPool::join(std::span<const std::uint64_t> tickets) {
  return state().control.join(tickets);
}
std::vector<std::uint32_t> KvPool::find(std::span<const std::string> keys) {
  std::vector<std::uint32_t> numbers;
  for (const auto& number : state().control.find(keys, false)) numbers.push_back(*number);
  return numbers;
}
std::vector<std::optional<std::uint32_t>> KvPool::find_all(std::span<const std::string> keys) {
  return state().control.find(keys, true);
}
std::vector<KvPresence> KvPool::contains(std::span<const std::string> keys) const {
  return state().control.contains(keys);
}
std::uint32_t KvPool::pin(std::span<const std::string> keys, std::uint32_t seconds) {
  return state().control.pin(keys, seconds);
}
bool KvPool::remove(std::string_view key) { return state().control.remove(key); }
std::uint32_t KvPool::clear() { return state().control.clear(); }
KvPoolEvents KvPool::events(std::uint64_t since) const { return state().control.events(since); }
KvPoolStats KvPool::stats() { return state().control.stats(); }

std::uint64_t KvPool::offset(std::uint32_t number) const {
  const KvGeometry& g = state().control.geometry();
  return number / g.records * g.extent_bytes + number % g.records * state().block_bytes;
}
std::uint64_t KvPool::block_bytes() const { return state().block_bytes; }

void KvPool::copy_blocks(std::span<const std::uint32_t> numbers, std::span<const std::uint32_t> rows,
                         const KvRows& array, std::uint64_t offset, bool to_pool) {
  State& s = state();
  const auto fits = [&](std::uint32_t row) { return row < array.count; };
  if (numbers.size() != rows.size() || offset > s.block_bytes || array.bytes > s.block_bytes - offset ||
      !std::ranges::all_of(rows, fits))
    throw_error(ErrorCode::invalid_argument,
                "{} blocks of {} bytes do not fit {} of {} rows of {} bytes at offset {}", numbers.size(),
                s.block_bytes, rows.size(), array.count, array.bytes, offset);
  s.control.check_leased(numbers);
  auto* const pool = static_cast<std::byte*>(s.memory.data());
  const Device pools = s.memory.device();
  const bool on_host = pools == kCpu && array.device == kCpu;
  constexpr std::size_t kBatch = 256;  // the device copies a batch while the next one is listed
  std::vector<Transfer> transfers;
  transfers.reserve(std::min(kBatch, rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::byte* const there = pool + this->offset(numbers[i]) + offset;
    std::byte* const here = array.data + rows[i] * array.stride;
    if (on_host) std::memcpy(to_pool ? there : here, to_pool ? here : there, array.bytes);
    else if (to_pool) transfers.push_back({there, pools, here, array.device, array.bytes});
    else transfers.push_back({here, array.device, there, pools, array.bytes});
    if (transfers.size() < kBatch && i + 1 < rows.size()) continue;
    if (!on_host) copy_batch(transfers, array.stream);
    transfers.clear();
  }
}

Tensor KvPool::memory() const { return state().memory; }

}  // namespace onecopy::store
