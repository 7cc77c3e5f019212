// SPDX-License-Identifier: Apache-2.0
#include "share/process.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "onecopy/core/error.h"
#include "onecopy/device/janitor.h"
#include "onecopy/os/process.h"
#include "onecopy/os/random.h"
#include "share/info_text.h"
#include "share/process_name.h"

namespace onecopy {
namespace {

std::atomic<Strategy> the_strategy{Strategy::file_descriptor};

ProcessId new_id() {
  ProcessId id;
  random_bytes(std::as_writable_bytes(std::span(id)));
  return id;
}

BootId this_boot() {
  static const BootId boot = [] {
    const auto whole = boot_id();
    BootId half;
    std::copy_n(whole.begin(), half.size(), half.begin());
    return half;
  }();
  return boot;
}

SegmentKind kind_of(Strategy strategy) {
  return strategy == Strategy::file_descriptor ? SegmentKind::memfd : SegmentKind::named_file;
}

}  // namespace

void set_strategy(Strategy strategy) { the_strategy = strategy; }
Strategy strategy() noexcept { return the_strategy; }

Process& Process::current() {
  if (Process* process = existing()) {
    if (is_raw_clone()) [[unlikely]]
      throw Error(ErrorCode::unsupported,
                  "this process was made by clone(2) from one that uses onecopy, without fork's "
                  "handlers; make it with fork(), posix_spawn() or exec");
    return *process;
  }
  std::lock_guard lock(making_);
  if (!current_) {
    static std::once_flag once;
    std::call_once(once, [] {
      handle_forks();
      std::atexit([] { at_exit(); });
    });
    auto made = std::unique_ptr<Process>(new Process());
    if (forked_from_) made->inherit(*std::exchange(forked_from_, nullptr));
    else {
      remove_abandoned_files();
      remove_abandoned_sockets();
    }
    current_ = made.release();  // never destroyed, see the class comment
  }
  return *current_;
}

/// The watch thread must not outlive static objects, and names must not outlive their use. Tensors
/// that live on keep their memory; a name that then stays is the next start's to remove.
void Process::at_exit() noexcept {
  Process* process = existing();
  if (!process) return;
  process->watch_.stop();
  process->broker_.stop_listening();
  if (process->ledger_.live() + process->ledger_.limbo() != 0) return;
  std::lock_guard lock(process->pools_mutex_);
  std::erase_if(process->pools_, [](const auto& p) { return p.first.first == SegmentKind::named_file; });
}

Process* Process::existing() noexcept { return current_.load(std::memory_order_acquire); }

Process::Process()
    : id_(new_id()),
      name_(public_name(id_)),
      adopted_(segments_),
      ledger_(id_, segments_),
      importer_(id_, ledger_, watch_, deposits_),
      broker_(id_, ledger_, importer_, deposits_, holds_, watch_) {
  segments_.on_retire = [this](std::uint32_t number) { broker_.announce_retired(number); };
  ledger_.on_limbo = [this] { watch_.request_tick(); };
  broker_.describe = [this] { return to_json(describe()); };
  watch_.add_tick([this] { return tick(); });
}

bool Process::tick() {
  bool more = ledger_.drain();
  more = holds_.expire() || more;
  more = deposits_.sweep() || more;
  more = importer_.sweep() || more;
  more = broker_.tick() || more;
  std::lock_guard lock(pools_mutex_);
  for (auto& [key, pool] : pools_) more = pool->trim(std::chrono::steady_clock::now()) || more;
  return more;
}

Pool& Process::pool(SegmentKind kind, Device device) {
  std::lock_guard lock(pools_mutex_);
  auto& pool = pools_[{kind, device}];
  if (!pool) {
    pool = std::make_unique<Pool>(backend(device.type), device.index, kind, name_, segments_);
    pool->on_idle = [this] { watch_.request_tick(); };
  }
  return *pool;
}

std::pair<BlockRef, std::byte*> Process::allocate(std::uint64_t bytes, Device device) {
  Pool& from = pool(kind_of(the_strategy), device);
  const Extent extent = from.allocate(bytes);
  try {
    return {ledger_.add(extent, from), extent.data};
  } catch (...) {
    from.free(extent);
    throw;
  }
}

Tensor Process::adopt(ExportedMemory memory) {
  const std::uint32_t number = segments_.next_number();
  const std::uint64_t size = memory.size;
  auto mapped = backend(DeviceType::cpu).open(0, std::move(memory), Access::read_write);
  std::byte* data = mapped->data();
  segments_.add(number, kCpu, std::move(mapped));
  const Extent extent{number, 0, size, data};
  try {
    const Layout bytes(DType::u8, {static_cast<std::int64_t>(size)});
    return {ledger_.add(extent, adopted_), data, bytes, kCpu, Access::read_write};
  } catch (...) {
    adopted_.free(extent);
    throw;
  }
}

Fd Process::segment_file(const Tensor& tensor) {
  auto& keeper = static_cast<SharedKeeper&>(*tensor.block().keeper());
  const std::uint32_t segment = keeper.export_block(tensor.block().number()).info.segment;
  return std::move(keeper.export_segment(segment, tensor.access()).fds.at(0));
}

void Process::Adopted::free(const Extent& extent) noexcept { segments_.remove(extent.segment); }

Handle Process::share(const Tensor& tensor, std::uint32_t flags) {
  BlockKeeper* keeper = tensor.block().keeper();
  if (!keeper || !keeper->shareable())
    throw Error(ErrorCode::invalid_argument,
                "this tensor's memory belongs to another library and cannot be opened by other "
                "processes; share onecopy::copy(tensor.view()) instead");
  broker_.listen();
  auto& shared = static_cast<SharedKeeper&>(*keeper);
  const BlockPlace place = shared.export_block(tensor.block().number());
  HandleFields fields;
  fields.boot = this_boot();
  fields.owner = shared.owner();
  fields.maker = id_;
  fields.segment = place.info.segment;
  fields.kind = place.kind;
  fields.segment_size = place.segment_size;
  fields.block = place.info.number;
  fields.generation = place.info.generation;
  fields.storage_size = place.info.size;
  fields.tensor_offset = static_cast<std::uint64_t>(static_cast<std::byte*>(tensor.data()) - place.data);
  fields.flags = flags | (tensor.access() == Access::read_only ? kHandleIsReadOnly : 0);
  fields.layout = tensor.layout();
  shared_total.fetch_add(1, std::memory_order_relaxed);
  return {std::move(fields), tensor.block()};
}

Tensor Process::open(const HandleFields& handle, Access access) {
  if (handle.boot != this_boot())
    throw Error(ErrorCode::other_boot,
                "this handle was made on another machine or before this one was restarted");
  if (handle.is_read_only() && access != Access::read_only)
    throw Error(ErrorCode::read_only,
                "this handle lends its tensor for reading only; open it with Access::read_only");
  Tensor tensor = importer_.open(handle, access);
  opened_total.fetch_add(1, std::memory_order_relaxed);
  return tensor;
}

void Process::open_channel(const ProcessId& creator, std::uint64_t channel, std::uint8_t role,
                           ChannelHooks hooks) {
  deposits_.add_channel(channel, std::move(hooks));
  if (creator != id_) importer_.connect(creator).join_channel(channel, role);
}

void Process::close_channel(const ProcessId& creator, std::uint64_t channel, std::uint8_t role) noexcept {
  deposits_.remove_channel(channel);
  if (creator == id_) broker_.forget_channel(channel);
  else if (Peer* peer = importer_.find(public_name(creator))) peer->leave_channel(channel, role);
}

void Process::deposit(const BlockRef& block, const ProcessId& creator, std::uint64_t channel) {
  auto& keeper = static_cast<SharedKeeper&>(*block.keeper());
  const std::uint32_t segment = keeper.export_block(block.number()).info.segment;
  if (creator != id_) {
    importer_.connect(creator).deposit({public_name(keeper.owner()), segment}, keeper.origin(),
                                       keeper.export_table(),
                                       keeper.export_segment(segment, Access::read_write), channel);
  } else if (keeper.owner() == id_) {
    broker_.spread_deposit(segment, channel);
  }
}

std::uint64_t Process::add_transit(TransitSource source) {
  std::lock_guard lock(transits_mutex_);
  transits_[++last_transit_] = std::move(source);
  return last_transit_;
}

void Process::remove_transit(std::uint64_t id) noexcept {
  std::lock_guard lock(transits_mutex_);
  transits_.erase(id);
}

std::vector<TransitInfo> Process::transits() const {
  std::vector<TransitInfo> list = broker_.orphans();
  const auto now = Holds::Clock::now();
  for (const auto since : holds_.list())
    list.push_back({1, std::chrono::duration<double>(now - since).count(), "handle"});
  std::lock_guard lock(transits_mutex_);
  for (const auto& [id, source] : transits_)
    if (TransitInfo info = source(); info.blocks != 0) list.push_back(std::move(info));
  return list;
}

Stats Process::stats() const {
  Stats s;
  s.shared_total = shared_total;
  s.opened_total = opened_total;
  s.live_blocks = ledger_.live();
  s.limbo = ledger_.limbo();
  for (const TransitInfo& transit : transits()) s.in_transit += transit.blocks;
  for (const SegmentInfo& segment : segments_.list()) {
    ++s.segments;
    s.bytes_shared += segment.committed;
  }
  for (const Peer* peer : importer_.peers()) {
    ++s.owners;
    s.foreign_segments += peer->segments();
    s.leases += peer->leases();
  }
  s.borrowers = broker_.borrower_count();
  s.deposits = deposits_.size();
  std::lock_guard lock(pools_mutex_);
  for (const auto& [key, pool] : pools_) s.live_bytes += pool->stats().live_bytes;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    (void)entry;
    ++s.descriptors;
  }
  return s;
}

OwnerInfo Process::describe() const {
  OwnerInfo info;
  info.pid = current_pid();
  info.name = process_name(info.pid);
  info.socket = name_;
  info.stats = stats();
  info.borrowers = broker_.borrowers();
  info.in_transit = transits();
  return info;
}

void Process::collect() {
  ledger_.drain();
  deposits_.sweep();
  importer_.sweep();
  std::lock_guard lock(pools_mutex_);
  for (auto& [key, pool] : pools_) pool->trim_all();
}

}  // namespace onecopy
