// SPDX-License-Identifier: Apache-2.0
#include "share/process.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "onecopy/core/error.h"
#include "onecopy/device/janitor.h"
#include "onecopy/os/process.h"
#include "onecopy/os/random.h"
#include "share/info_text.h"
#include "share/process_name.h"

namespace onecopy {
namespace {

std::atomic<Process*> the_process{nullptr};
std::mutex making;
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

/// A page that reads as zero in a child whose making our fork handlers have not seen.
std::atomic<std::uint32_t>* clone_mark = nullptr;

void make_clone_mark() {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw_errno("mmap of a page", errno);
  clone_mark = new (page) std::atomic<std::uint32_t>(1);
  madvise(page, 4096, MADV_WIPEONFORK);  // older kernels: raw clones go unnoticed
}

}  // namespace

void set_strategy(Strategy strategy) { the_strategy = strategy; }
Strategy strategy() noexcept { return the_strategy; }

Process& Process::current() {
  if (Process* process = the_process.load(std::memory_order_acquire)) {
    if (clone_mark->load(std::memory_order_relaxed) == 0) [[unlikely]]
      throw Error(ErrorCode::unsupported,
                  "this process was made by clone(2) from one that uses onecopy, without fork's "
                  "handlers; make it with fork(), posix_spawn() or exec");
    return *process;
  }
  std::lock_guard lock(making);
  if (!the_process) {
    static const bool once = [] {
      make_clone_mark();
      const int error = pthread_atfork(&Process::prepare_fork, &Process::finish_in_parent,
                                       &Process::finish_in_child);
      if (error != 0) throw_errno("pthread_atfork", error);
      std::atexit([] { at_exit(); });
      return true;
    }();
    (void)once;
    the_process = new Process();  // never destroyed, see the class comment
    remove_abandoned_files();
  }
  return *the_process;
}

/// The watch thread must not outlive static objects, and names must not outlive their use. Tensors
/// that live on keep their memory; a name that then stays is the next start's to remove.
void Process::at_exit() noexcept {
  Process* process = existing();
  if (!process) return;
  process->watch_.stop();
  if (process->ledger_.live() + process->ledger_.limbo() != 0) return;
  std::lock_guard lock(process->pools_mutex_);
  std::erase_if(process->pools_, [](const auto& p) { return p.first.first == SegmentKind::named_file; });
}

Process* Process::existing() noexcept { return the_process.load(std::memory_order_acquire); }

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

bool Process::tick() noexcept {
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
  if (!pool)
    pool = std::make_unique<Pool>(backend(device.type), device.index, kind, name_, segments_);
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

void Process::close_channel(const ProcessId& creator, std::uint64_t channel,
                            std::uint8_t role) noexcept {
  deposits_.remove_channel(channel);
  if (creator == id_)
    broker_.forget_channel(channel);
  else if (Peer* peer = importer_.find(public_name(creator)))
    peer->leave_channel(channel, role);
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
  std::vector<TransitInfo> list;
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

// ---- fork ------------------------------------------------------------------------------------
// Before: the watch thread stops, every lock is taken, and each owner (ourselves included) gets a
// claim page in which the child counts as holding everything. After, in the child, which is alone:
// exact claims replace "everything", and a new Process takes over. No owner is asked to answer.

void Process::prepare_fork() {
  Process* process = existing();
  if (!process) return;
  process->watch_.stop();
  process->lock_all();
  for (const auto& peer : process->importer_.peers_locked()) {
    peer->lock_for_fork();
    peer->prepare_fork();
  }
  for (Inherited& from : process->inherited_)
    from.child = announce_child(from.owner->ledger_.inherited_page(), from.socket);
  if (process->ledger_.live_locked() == 0) return;
  process->ledger_.export_all();
  process->child_ = process->broker_.prepare_fork();
}

void Process::finish_in_parent() {
  Process* process = existing();
  if (!process) return;
  process->child_.reset();
  for (Inherited& from : process->inherited_) from.child.reset();
  for (const auto& peer : process->importer_.peers_locked()) {
    peer->finish_fork_in_parent();
    peer->unlock_after_fork();
  }
  process->unlock_all();
  process->watch_.start_again();
}

void Process::finish_in_child() {
  Process* parent = existing();
  if (!parent) return;
  for (const auto& peer : parent->importer_.peers_locked()) {
    peer->finish_fork_in_child();
    peer->unlock_after_fork();
  }
  parent->unlock_all();
  the_process = nullptr;
  clone_mark->store(1);
  auto* child = new Process();
  child->inherit(*parent);
  the_process = child;
}

void Process::inherit(Process& parent) {
  inherited_ = std::move(parent.inherited_);
  if (parent.child_) inherited_.push_back({&parent, {}, {}, std::move(parent.child_)});
  for (Inherited& from : inherited_) {
    if (!from.child) continue;  // that owner is gone: its memory is frozen
    from.owner->ledger_.become_borrower(claims_in(from.child->memory));
    from.page = std::move(from.child->memory);
    from.socket = std::move(from.child->socket);
    from.child.reset();
    greet_owner(from.socket);
    watch_inherited(from);
  }
  parent.abandon();
  importer_.inherit(parent.importer_);
  if (!inherited_.empty() && inherited_.back().owner == &parent)
    importer_.add_inherited(parent.ledger_);
}

/// The owner tells when a segment is gone; its end is no news, the memory stays.
void Process::watch_inherited(Inherited& from) {
  watch_.add(from.socket.fd(), [this, &from] {
    try {
      while (auto packet = from.socket.try_receive())
        if (wire::type_of(packet->bytes) == wire::Type::retire)
          from.owner->segments_.remove(wire::body_of<wire::Retire>(packet->bytes).segment);
    } catch (const Error& e) {
      watch_.remove(from.socket.fd());
      if (e.code() != ErrorCode::peer_died) throw;
    }
  });
}

/// In the child's copy of its parent: what only the parent may do stops here, which is answering,
/// holding for others and returning memory.
void Process::abandon() noexcept {
  watch_.abandon();
  broker_.abandon();
  holds_.clear();
  deposits_.clear();
  segments_.on_retire = nullptr;
  segments_.abandon();
  for (auto& [key, pool] : pools_) pool->abandon();
}

void Process::lock_all() {
  making.lock();
  pools_mutex_.lock();
  for (auto& [key, pool] : pools_) pool->prepare_fork();
  segments_.prepare_fork();
  importer_.lock();
  broker_.lock();
  holds_.lock();
  deposits_.lock();
  ledger_.lock();
}

void Process::unlock_all() {
  ledger_.unlock();
  deposits_.unlock();
  holds_.unlock();
  broker_.unlock();
  importer_.unlock();
  segments_.finish_fork();
  for (auto& [key, pool] : pools_) pool->finish_fork();
  pools_mutex_.unlock();
  making.unlock();
}

}  // namespace onecopy
