// SPDX-License-Identifier: Apache-2.0
#include "share/process.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include "onecopy/core/error.h"
#include "onecopy/device/janitor.h"
#include "onecopy/os/log.h"
#include "onecopy/os/process.h"
#include "onecopy/os/random.h"
#include "share/call.h"
#include "share/info_text.h"
#include "share/process_name.h"

namespace onecopy {
namespace {

constexpr std::chrono::seconds kPatienceWithStreams{5};  // of who is short of memory that they use

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

/// Names are for the memory of the host.
SegmentKind kind_of(Strategy strategy, Device device) {
  if (device.type != DeviceType::cpu) return backend(device.type).kind_on(device.index);
  return strategy == Strategy::file_descriptor ? SegmentKind::memfd : SegmentKind::named_file;
}

}  // namespace

void set_strategy(Strategy strategy) { the_strategy = strategy; }
Strategy strategy() noexcept { return the_strategy; }

Process& Process::make_current() {
  if (existing() && is_raw_clone())
    throw Error(ErrorCode::unsupported,
                "this process was made by clone(2) from one that uses onecopy, without fork's "
                "handlers; make it with fork(), posix_spawn() or exec");
  if (forks_unhandled_ != 0) throw_errno("pthread_atfork", forks_unhandled_);
  std::lock_guard lock(making_);
  if (!current_) {
    static const int at_exit_is_registered [[maybe_unused]] = std::atexit([] { at_exit(); });
    handled_pid_ = current_pid();
    auto made = std::unique_ptr<Process>(new Process());
    if (forked_from_) {
      made->inherit(*forked_from_);
      forked_from_ = nullptr;
    } else if (!EarlyCall::is_waiting()) {
      made->clean_up();
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
  const std::scoped_lock lock(process->trimming_, process->pools_mutex_);
  process->last_pool_ = nullptr;
  std::erase_if(process->pools_, [](const auto& p) { return p.first.first == SegmentKind::named_file; });
}

void Process::settle_streams() noexcept {
  constexpr std::chrono::seconds kPatience{10};
  const Process* process = existing();
  if (process && !process->timeline_.settle(kPatience))
    log_warning(
        "streams of this process still have work to do before tensors that it has handed over; should it "
        "end "
        "now, whoever opens those is told so. Synchronize before the end.");
}

Process::Process()
    : id_(new_id()),
      name_(public_name(id_)),
      adopted_(segments_),
      ledger_(id_, segments_),
      adoptions_(segments_, ledger_),
      releases_(timeline_),
      importer_(id_, ledger_, watch_, deposits_, holds_),
      broker_(id_, ledger_, importer_, deposits_, holds_, timeline_, watch_) {
  timeline_.on_first_mark = [] {
    static std::once_flag once;  // after the driver's own handlers, and so run before them
    std::call_once(once, [] { std::atexit([] { settle_streams(); }); });
  };
  releases_.on_wait = [this] { watch_.request_tick(); };
  segments_.on_retire = [this](std::uint32_t number) {
    broker_.announce_retired(number);
    if (deposits_.retire({name_, number})) watch_.request_tick();
  };
  ledger_.on_limbo = [this] { watch_.request_tick(); };
  adoptions_.on_idle = [this] { watch_.request_tick(); };
  broker_.describe = [this] { return to_json(describe()); };
  watch_.add_tick([this] { return tick(); });
}

/// Once: what processes that were killed have left. A process that begins by opening has it done by its watch thread.
void Process::clean_up() {
  if (std::exchange(cleaned_up_, true)) return;
  remove_abandoned_sockets();
  remove_abandoned_files();
}

bool Process::tick() {
  clean_up();
  bool more = ledger_.drain();
  more = holds_.expire() || more;
  more = deposits_.sweep() || more;
  more = tell_of_retired() || more;
  more = importer_.sweep() || more;
  more = broker_.tick() || more;
  more = releases_.sweep() || more;
  more = adoptions_.sweep(std::chrono::steady_clock::now()) || more;
  more = trim() || more;
  return remove_released_files() || more;  // after all that may have released one
}

/// Little by little: borrowers wait for answers meanwhile, and a fork for the thread.
bool Process::trim() {
  constexpr std::uint64_t kAtOnce = std::uint64_t{32} << 20;
  const std::unique_lock lock(trimming_, std::try_to_lock);
  if (!lock) return true;  // collect() is at it
  bool more = false;
  std::uint64_t bytes = 0;
  for (Pool* pool : pools()) {
    const Pool::Trimmed trimmed = pool->trim(std::chrono::steady_clock::now(), kAtOnce);
    more = more || trimmed.waiting;
    bytes = std::max(bytes, trimmed.bytes);
  }
  if (bytes >= kAtOnce) watch_.hurry();
  return more;
}

/// True while somebody has to be told again.
bool Process::tell_of_retired() {
  bool again = false;
  for (const auto& [segment, keepers] : deposits_.take_retired())
    for (const ProcessId& keeper : keepers) {
      Peer* peer = importer_.find(public_name(keeper));
      if (!peer || peer->withdraw(segment) || peer->is_gone()) continue;
      deposits_.add_elsewhere(segment, keeper);
      again = (deposits_.retire(segment) && !peer->is_disconnected()) || again;
    }
  return again;
}

/// Giving memory back takes milliseconds, and allocations need pools_mutex_.
std::vector<Pool*> Process::pools() const {
  const std::lock_guard lock(pools_mutex_);
  std::vector<Pool*> all;
  for (const auto& [key, pool] : pools_) all.push_back(pool.get());
  return all;
}

Pool& Process::pool(SegmentKind kind, Device device) {
  const Pools::key_type key{kind, device};
  if (const auto* last = last_pool_.load(std::memory_order_acquire); last && last->first == key)
    return *last->second;
  std::lock_guard lock(pools_mutex_);
  const auto at = pools_.try_emplace(key).first;
  if (!at->second) {
    at->second = std::make_unique<Pool>(backend(device.type), device.index, kind, name_, segments_);
    at->second->on_idle = [this] { watch_.request_tick(); };
  }
  last_pool_.store(&*at, std::memory_order_release);
  return *at->second;
}

/// Waits until a stream has come past the end of some. False when none are left to wait for, or it takes too long.
bool Process::await_release(std::chrono::steady_clock::time_point deadline) {
  const std::size_t waiting = releases_.size();
  while (releases_.size() != 0 && std::chrono::steady_clock::now() < deadline) {
    releases_.sweep();
    if (releases_.size() < waiting) return ledger_.drain(), true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

/// What is short only because streams have still to come past what was dropped is no shortage yet.
Extent Process::allocate_from(Pool& pool, std::uint64_t bytes, Device device) {
  const auto deadline = std::chrono::steady_clock::now() + kPatienceWithStreams;
  for (bool again = device != kCpu && releases_.size() != 0;; again = await_release(deadline)) {
    try {
      return pool.allocate(bytes);
    } catch (const Error& error) {
      if (!again || error.code() != ErrorCode::out_of_memory) throw;
    }
  }
}

std::pair<BlockRef, std::byte*> Process::allocate(std::uint64_t bytes, Device device) {
  Pool& from = pool(kind_of(the_strategy, device), device);
  Extent extent = allocate_from(from, bytes, device);
  extent.size = bytes;  // what the pool adds by rounding belongs to nobody
  try {
    return {ledger_.add(extent, from), extent.data};
  } catch (...) {
    from.free(extent);
    throw;
  }
}

Tensor Process::adopt(std::unique_ptr<DeviceMemory> memory, std::uint64_t size, std::uint64_t committed,
                      std::uint64_t offset) {
  const std::uint32_t number = segments_.next_number();
  const Extent extent{number, offset, size, memory->data() + offset};
  segments_.add(number, kCpu, std::move(memory));
  segments_.add_committed(number, static_cast<std::int64_t>(committed));
  try {
    const Layout bytes(DType::u8, {static_cast<std::int64_t>(size)});
    return {ledger_.add(extent, adopted_), extent.data, bytes, kCpu, Access::read_write};
  } catch (...) {
    adopted_.free(extent);
    throw;
  }
}

Fd Process::segment_file(const Tensor& tensor) {
  auto& keeper = static_cast<SharedKeeper&>(*tensor.block().keeper());
  const std::uint32_t segment = keeper.export_block(tensor.block().number(), tensor.access()).info.segment;
  return std::move(keeper.export_segment(segment, tensor.access()).fds.at(0));
}

void Process::Adopted::free(const Extent& extent) noexcept { segments_.remove(extent.segment); }

Handle Process::share(const Tensor& tensor, std::uint32_t flags) {
  return {name_in_handle(tensor, flags), tensor.block()};
}

HandleFields Process::name_in_handle(const Tensor& tensor, std::uint32_t flags) {
  BlockKeeper* keeper = tensor.block().keeper();
  if (!keeper || !keeper->shareable())
    throw Error(ErrorCode::invalid_argument,
                "this tensor's memory belongs to another library and cannot be opened by other "
                "processes; share onecopy::copy(tensor.view()) instead");
  broker_.listen();
  auto& shared = static_cast<SharedKeeper&>(*keeper);
  const BlockPlace place = shared.export_block(tensor.block().number(), tensor.access());
  const std::byte* const begin = begin_for(shared, tensor, {place.info, place.data});
  HandleFields fields;
  fields.boot = this_boot();
  fields.owner = shared.owner();
  fields.maker = id_;
  fields.device_type = place.identity->device.type;
  fields.device = place.identity->uuid;
  fields.segment = place.info.segment;
  fields.kind = place.kind;
  fields.segment_size = place.segment_size;
  fields.block = place.info.number;
  fields.generation = place.info.generation;
  fields.storage_size = place.info.size;
  fields.tensor_offset = static_cast<std::uint64_t>(tensor.as<std::byte>() - begin);
  fields.flags = flags | (tensor.access() == Access::read_only ? kHandleIsReadOnly : 0);
  fields.layout = tensor.layout();
  shared_total.fetch_add(1, std::memory_order_relaxed);
  return fields;
}

/// Whoever holds the block can serve it, so the holder is the maker from here on: a forked child that
/// holds a handle of its parent's holds it itself.
Handle Process::hold(const Handle& handle) {
  if (!handle.block())
    throw Error(ErrorCode::invalid_argument,
                "this handle was read from bytes or text and keeps nothing alive; hold the one that "
                "share() returned, or open() it and share() the tensor again");
  broker_.listen();
  HandleFields fields = handle.fields();
  fields.maker = id_;
  fields.hold = holds_.add(handle.block());
  watch_.request_tick();
  return {std::move(fields), handle.block()};
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

Handle Process::share(const Tensor& tensor, Stream stream) {
  HandleFields fields = share(tensor).fields();
  if (tensor.device() != kCpu) {
    const TimelinePoint point = timeline_.mark(tensor.device(), stream);
    fields.timeline_slot = point.slot;
    fields.timeline_value = point.value;
  }
  return {std::move(fields), tensor.block()};
}

Tensor Process::open(const HandleFields& handle, Access access, Stream stream) {
  return open(handle, OpenOptions{access, {}, stream});
}

void Process::wait_for(const ProcessId& maker, const TimelinePoint& point, Device device, Stream stream) {
  if (maker == id_) return timeline_.wait(device, stream, point);
  if (ForeignTimeline* timeline = importer_.timeline_of(maker)) timeline->wait(device, stream, point);
}

void Process::prepare_wait(const ProcessId& maker, Device device) {
  if (maker == id_) return;
  if (ForeignTimeline* timeline = importer_.timeline_of(maker)) timeline->prepare(device);
}

Process::Reached Process::has_passed(const ProcessId& maker, const TimelinePoint& point) const {
  if (maker == id_) return timeline_.has_passed(point) ? Reached::yes : Reached::no;
  const ForeignTimeline* timeline = importer_.known_timeline_of(maker);
  if (!timeline) return Reached::unknown;
  return timeline->has_passed(point) ? Reached::yes : Reached::no;
}

bool Process::may_wait_on_host(const ProcessId& maker, Device device) const {
  if (maker == id_) return timeline_.may_wait_on_host(device);
  const ForeignTimeline* timeline = importer_.known_timeline_of(maker);
  return !timeline || timeline->may_wait_on_host(device);
}

Tensor Process::open(const HandleFields& handle, const OpenOptions& options) {
  Tensor tensor = open(handle, options.access);
  if (options.device) tensor = use_on(tensor, *options.device);
  if (!options.stream || tensor.device() == kCpu) return tensor;
  if (const TimelinePoint point{handle.timeline_slot, handle.timeline_value})
    wait_for(handle.maker, point, tensor.device(), *options.stream);
  return order_release(tensor, *options.stream);
}

/// Of an adopted allocation everything can be seen, and nobody but the framework knows what is in it. Of
/// another process's memory we do not know how it came to be.
std::string Process::exposes(const Tensor& tensor) const {
  constexpr std::uint64_t kRounding = 511;  // what allocators may add to what is asked of them
  if (!is_shareable(tensor)) return {};     // share() says so
  auto& keeper = static_cast<SharedKeeper&>(*tensor.block().keeper());
  const BlockPlace place = keeper.export_block(tensor.block().number(), tensor.access());
  const bool ours = keeper.owner() == id_ && !adoptions_.contains(place.info.segment);
  const bool exact = ours || tensor.device() == kCpu;  // such blocks have what was asked of us
  const std::uint64_t seen = exact ? place.info.size : place.segment_size;
  const std::uint64_t bytes = tensor.layout().extent_bytes();
  const bool is_first = place.info.offset == 0 &&
                        tensor.as<std::byte>() == begin_for(keeper, tensor, {place.info, place.data});
  if (seen <= bytes + (!exact && is_first ? kRounding : 0)) return {};
  return fmt::format(
      "the tensor has {} bytes, and its handle would let others see all {} of the {} that it lies in; "
      "share "
      "it whole, share a copy (Exact::copy), or allocate it with onecopy",
      bytes, seen, ours ? "storage" : "allocation");
}

Tensor Process::order_release(const Tensor& tensor, Stream stream) {
  if (tensor.device() == kCpu || !tensor.block().keeper() || !tensor.block().keeper()->shareable())
    return tensor;
  return {releases_.order(tensor.block(), tensor.device(), stream), tensor.data(), tensor.layout(),
          tensor.device(), tensor.access()};
}

void Process::open_channel(const ProcessId& creator, std::uint64_t channel, std::uint8_t role,
                           ChannelHooks hooks) {
  deposits_.add_channel(channel, std::move(hooks));
  if (creator == id_) return;
  Peer& peer = importer_.connect(creator);
  try {
    peer.join_channel(channel, role);
  } catch (const Error& error) {  // a creator that is stopped reads it later
    if (error.code() != ErrorCode::timeout) throw;
  }
}

void Process::close_channel(const ProcessId& creator, std::uint64_t channel, std::uint8_t role) noexcept {
  deposits_.remove_channel(channel);
  if (creator == id_) broker_.forget_channel(channel);
  else if (Peer* peer = importer_.find(public_name(creator))) peer->leave_channel(channel, role);
}

void Process::deposit(const BlockRef& block, const ProcessId& creator, std::uint64_t channel) {
  auto& keeper = static_cast<SharedKeeper&>(*block.keeper());
  const BlockPlace place = keeper.export_block(block.number(), Access::read_write);
  const std::uint32_t segment = place.info.segment;
  if (creator == id_ && keeper.owner() == id_) return broker_.spread_deposit(segment, channel);
  const DepositKey key{public_name(keeper.owner()), segment};
  if (creator != id_) {
    deposits_.add_elsewhere(key, creator);  // first: what times out may be served later
    importer_.connect(creator).deposit(key, keeper.origin(), keeper.export_table(),
                                       importer_.pass_on(keeper, segment), channel);
  } else if (device_type(place.kind) != DeviceType::cpu && !is_weak(place.kind)) {
    // Of the host's memory what is open here will do.
    if (!deposits_.add(key, keeper.origin(), keeper.export_table(), importer_.pass_on(keeper, segment),
                       channel))
      throw Error(ErrorCode::unsupported, "this process keeps no more descriptors of device memory");
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
  s.unkept = unkept;
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
  s.host_waits = host_waits;
  std::lock_guard lock(pools_mutex_);
  for (const auto& [key, pool] : pools_) s.live_bytes += pool->stats().live_bytes;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    (void)entry;
    ++s.descriptors;
  }
  return s;
}

std::vector<DeviceUse> Process::devices() const {
  std::map<Device, DeviceUse> found;
  for (const SegmentInfo& segment : segments_.list()) {
    DeviceUse& use = found[segment.device];
    use.device = segment.device.str();
    if (segment.identity && segment.device != kCpu) use.uuid = segment.identity->uuid.str();
    ++use.segments;
    use.bytes += segment.committed;
  }
  std::vector<DeviceUse> list;
  for (auto& [device, use] : found) list.push_back(std::move(use));
  return list;
}

OwnerInfo Process::describe() const {
  OwnerInfo info;
  info.pid = current_pid();
  info.name = process_name(info.pid);
  info.socket = name_;
  info.stats = stats();
  info.devices = devices();
  info.borrowers = broker_.borrowers();
  info.in_transit = transits();
  return info;
}

void Process::collect() {
  ledger_.drain();
  deposits_.sweep();
  releases_.sweep();
  importer_.sweep();
  adoptions_.sweep_all();
  const std::lock_guard lock(trimming_);
  for (Pool* pool : pools()) pool->trim_all();
  if (remove_released_files()) watch_.request_tick();
}

}  // namespace onecopy
