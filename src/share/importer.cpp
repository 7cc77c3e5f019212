// SPDX-License-Identifier: Apache-2.0
#include "share/importer.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "onecopy/core/error.h"
#include "share/process_name.h"

namespace onecopy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookAgain{1};

Error stale(const HandleFields& handle) {
  return Error(ErrorCode::stale_handle,
               fmt::format("block {} of the owner no longer is what this handle names (generation {}): "
                           "the tensor was freed before the handle was opened; keep the Handle object "
                           "alive until the receiver has opened it (for a single tensor of onecopy or "
                           "torch, keep the tensor or the Handle)",
                           handle.block, handle.generation));
}

/// The owner and the handle must agree on where the memory is before it is touched.
void check_block_number(const HandleFields& handle) {
  if (handle.block >= kMaxBlocks)
    throw Error(ErrorCode::bad_handle, fmt::format("the handle names block {}; a process has at most {}",
                                                   handle.block, kMaxBlocks));
}

/// The driver may have to know who opens the segment.
Peer::Wanted wanted(const HandleFields& handle, Access access, std::optional<Device> user = {}) {
  return {handle.segment, access, backend(device_type(handle.kind)).borrower_number(), user};
}

/// The first look at a device takes its driver longer than a connection, and the owner needs the time to wake up.
void look_at_device(const HandleFields& handle) noexcept {
  try {
    find_device(device_type(handle.kind), handle.device);
  } catch (const std::exception&) {  // whoever maps the segment will find out why
  }
}

Error died(const HandleFields& handle) {
  return Error(
      ErrorCode::owner_died,
      fmt::format("the process that owned this tensor has exited (or lives in another network "
                  "namespace, and has no common ONECOPY_RUNTIME_DIR with this one), and neither the "
                  "maker of the handle nor this process holds its segment {}",
                  handle.segment));
}

}  // namespace

class Importer::Turn {
 public:
  Turn(Importer& importer, const ProcessId& process) : importer_(importer), process_(process) {
    std::unique_lock lock(importer_.turns_);
    const auto begin = [&] { return importer_.in_turn_.insert(process_).second; };
    if (!importer_.turn_ended_.wait_for(lock, broker_patience(), begin))
      throw Error(ErrorCode::timeout,
                  "another thread is connecting to that process, and has had no answer yet; it may be "
                  "stopped (SIGSTOP, a debugger), try again once it runs");
  }
  ~Turn() {
    {
      const std::lock_guard lock(importer_.turns_);
      importer_.in_turn_.erase(process_);
    }
    importer_.turn_ended_.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Importer& importer_;
  const ProcessId& process_;
};

Importer::Importer(const ProcessId& self, Ledger& ledger, Watch& watch, Deposits& deposits, Holds& holds)
    : self_(self), ledger_(ledger), watch_(watch), deposits_(deposits), holds_(holds) {}

Tensor Importer::open(const HandleFields& handle, Access access, std::optional<Device> user) {
  check_block_number(handle);
  if (handle.owner == self_) return open_own(handle, access);
  for (;;) {
    Peer* peer = find_owner(handle.owner);
    if (!peer || peer->is_closed()) peer = &reach_owner(handle, access, user);
    BlockRef ref;
    try {
      ref = peer->claim(handle.block, handle.generation);
    } catch (const Error&) {
      if (!peer->is_disconnected() || peer->is_gone()) throw;
      // The old connection has nobody to ask any more.
      peer = &connect(handle.owner, wanted(handle, access, user));
      ref = peer->claim(handle.block, handle.generation);
    }
    if (!ref && peer->is_gone()) {
      std::lock_guard no_sweep(mutex_);  // which may have been in the middle of trying to close it
      if (peer->is_closed()) continue;
      ref = peer->claim(handle.block, handle.generation);
    }
    if (!ref) throw stale(handle);
    point("open.claimed");
    const Peer::Said said{handle.block, handle.segment, handle.segment_size, handle.storage_size,
                          handle.kind};
    Peer::Location at = peer->locate(said, access, user);
    while (!at) {  // the lease keeps the segment from being retired
      fetch(*peer, handle, access, user);
      at = peer->locate(said, access, user);
    }
    if (handle.hold != 0) acknowledge(handle);
    return {std::move(ref), at.data + handle.tensor_offset, handle.layout,
            user.value_or(at.identity->device), access};
  }
}

Tensor Importer::open_own(const HandleFields& handle, Access access) {
  BlockRef ref = ledger_.try_open(handle.block, handle.generation);
  if (!ref) throw stale(handle);
  const BlockPlace place = ledger_.export_block(handle.block, access);
  if (place.info.segment != handle.segment || handle.storage_size > place.info.size ||
      place.kind != handle.kind || place.segment_size != handle.segment_size)
    throw Error(ErrorCode::bad_handle, "the handle contradicts this process's own block table");
  if (handle.hold != 0) acknowledge(handle);
  return {std::move(ref), place.data + handle.tensor_offset, handle.layout, place.identity->device, access};
}

void Importer::acknowledge(const HandleFields& handle) noexcept {
  if (handle.maker == self_) return holds_.end(handle.hold);
  Peer* maker = find_owner(handle.maker);
  if (!maker || !maker->acknowledge(handle.hold)) acknowledge_to(public_name(handle.maker), handle.hold);
}

Peer* Importer::prepare(const HandleFields& handle, Access access) {
  if (handle.owner == self_) return nullptr;
  Peer* peer = find_owner(handle.owner);
  if (!peer || peer->is_closed()) peer = &reach_owner(handle, access, {});
  if (!peer->has_segment(handle.segment, access)) fetch(*peer, handle, access, {});
  return peer;
}

/// None of a process that has ended. One that hung up on us, or whose sockets are closed and whose device may still
/// be at work, has not.
ForeignTimeline* Importer::timeline_of(const ProcessId& process) {
  if (ForeignTimeline* known = known_timeline_of(process)) return known;
  const auto deadline = Clock::now() + kDeathTakesAtMost;
  for (;; std::this_thread::sleep_for(kLookAgain)) {
    try {
      ForeignTimeline& timeline = connect(process).timeline();
      std::lock_guard lock(mutex_);
      return timelines_[process] = &timeline;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::peer_died) throw;
      const Peer* peer = find_owner(process);
      if (!peer || peer->has_ended()) return nullptr;
      if (Clock::now() > deadline) throw;
    }
  }
}

ForeignTimeline* Importer::known_timeline_of(const ProcessId& process) const {
  std::lock_guard lock(mutex_);
  const auto at = timelines_.find(process);
  return at == timelines_.end() ? nullptr : at->second;
}

Peer* Importer::find_owner(const ProcessId& owner) const {
  std::lock_guard lock(mutex_);
  const auto at = by_owner_.find(owner);
  return at == by_owner_.end() ? nullptr : at->second;
}

Peer* Importer::find(const std::string& name) const {
  std::lock_guard lock(mutex_);
  for (const auto& [id, peer] : by_owner_)
    if (peer->name() == name && !peer->is_closed()) return peer;
  return nullptr;
}

Peer& Importer::connect(const ProcessId& process, std::optional<Peer::Wanted> wanted) {
  const auto live = [&] {
    Peer* peer = find_owner(process);
    return peer && !peer->is_disconnected() ? peer : nullptr;
  };
  if (Peer* peer = live()) return *peer;
  const Patience in_all(Clock::now() + broker_patience());
  const Turn turn(*this, process);
  if (Peer* peer = live()) return *peer;
  if (std::optional<Call> early = EarlyCall::take(process)) {
    try {
      return attach(*std::move(early), wanted);
    } catch (const Error& e) {  // who takes too long to answer is hung up on
      if (e.code() != ErrorCode::peer_died) throw;
    }
  }
  return attach(Call(process, broker_patience()), wanted);
}

Peer& Importer::attach(Call call, std::optional<Peer::Wanted> wanted) {
  std::unique_ptr<Peer> peer = Peer::introduce(std::move(call), public_name(self_), wanted);
  watch_.start();         // while the other looks at our proof
  watch_.request_tick();  // for what has waited for a thread: see Process::clean_up()
  peer->await_welcome();
  return adopt(std::move(peer));
}

/// A disconnected peer of the same process stays: leases and caches point at it.
Peer& Importer::adopt(std::unique_ptr<Peer> adopted) {
  Peer& peer = *adopted;
  {
    const std::lock_guard lock(mutex_);
    open_.push_back(
        std::move(adopted));  // first: a handler of its may run already when the next cannot be added
  }
  peer.watch(watch_, deposits_);
  const std::lock_guard lock(mutex_);
  return *(by_owner_[peer.owner()] = &peer);
}

/// The owner itself while it lives; else frozen memory from whoever holds it. In between, while its
/// sockets are closed and its process is not yet known to be gone, look again.
Peer& Importer::reach_owner(const HandleFields& handle, Access access, std::optional<Device> user) {
  const auto deadline = Clock::now() + kDeathTakesAtMost;
  look_at_device(handle);
  for (;; std::this_thread::sleep_for(kLookAgain)) {
    try {
      return connect(handle.owner, wanted(handle, access, user));
    } catch (const Error& e) {
      if (e.code() != ErrorCode::peer_died) throw;
    }
    std::optional<HeldSegment> found = ask_holders(handle, access);
    if (!found) throw died(handle);
    if (found->owner_gone) {
      const Turn turn(*this, handle.owner);
      if (Peer* peer = find_owner(handle.owner); peer && !peer->is_closed()) return *peer;
      auto frozen = Peer::frozen(handle.owner, std::move(found->table));
      frozen->map_segment(wanted(handle, access, user), std::move(found->memory));
      return adopt(std::move(frozen));  // last: nobody holds it yet, so any sweep may close it from here on
    }
    if (Clock::now() > deadline)
      throw Error(ErrorCode::peer_died,
                  "the owner of this tensor lives but cannot be reached from here; processes in "
                  "different network namespaces need a common ONECOPY_RUNTIME_DIR");
  }
}

std::optional<HeldSegment> Importer::ask_holders(const HandleFields& handle, Access access) {
  const std::string owner = public_name(handle.owner);
  if (auto kept = deposits_.open({owner, handle.segment}, access)) return kept;
  for (const Ledger* ledger : inherited_) {
    if (ledger->owner() != handle.owner) continue;
    try {
      return HeldSegment{ledger->export_table(), ledger->export_segment(handle.segment, access),
                         is_gone(ledger->origin())};
    } catch (const Error& e) {  // it was allocated after the fork: somebody else may have it
      if (e.code() != ErrorCode::stale_handle) throw;
    }
  }
  if (handle.maker == handle.owner || handle.maker == self_) return {};
  try {
    return connect(handle.maker).fetch_foreign(owner, wanted(handle, access));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died && e.code() != ErrorCode::owner_died) throw;
  }
  return {};
}

void Importer::fetch(Peer& peer, const HandleFields& handle, Access access, std::optional<Device> user) {
  const Peer::Wanted segment = wanted(handle, access, user);
  try {
    if (!peer.is_disconnected()) return peer.fetch_segment(segment);
    if (!peer.is_gone()) return fetch_again(peer, segment);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died) throw;
  }
  const Access other = access == Access::read_only ? Access::read_write : Access::read_only;
  std::optional<Error> not_kept;
  if (access == Access::read_only && peer.has_segment(handle.segment, other)) {
    try {
      return peer.map_segment(segment, peer.export_segment(handle.segment, access));
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported) throw;
      not_kept = e;
    }
  }
  std::optional<HeldSegment> found = ask_holders(handle, access);
  if (!found) throw not_kept.value_or(died(handle));
  peer.map_segment(segment, std::move(found->memory));
}

/// The owner closed the connection and lives: it was short of something when we last spoke. Our leases
/// of the old connection stay good as long as this process lives.
void Importer::fetch_again(Peer& old, const Peer::Wanted& wanted) {
  Peer& peer = connect(old.owner());
  if (&peer == &old) return;
  old.map_segment(wanted, peer.fetch_memory(wanted));
}

ExportedMemory Importer::pass_on(const SharedKeeper& keeper, std::uint32_t segment) {
  try {
    return keeper.export_segment(segment, Access::read_write);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported) throw;
    if (auto memory = ask_owner(keeper.owner(), segment)) return *std::move(memory);
    throw;
  }
}

/// Empty when it is gone.
std::optional<ExportedMemory> Importer::ask_owner(const ProcessId& owner, std::uint32_t segment) {
  try {
    return connect(owner).fetch_memory({segment, Access::read_write});
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died) throw;
    return {};
  }
}

std::vector<Peer*> Importer::peers() const {
  std::lock_guard lock(mutex_);
  std::vector<Peer*> peers;
  for (const auto& peer : open_)
    if (!peer->is_closed()) peers.push_back(peer.get());
  return peers;
}

bool Importer::sweep() noexcept {
  std::lock_guard lock(mutex_);
  bool waiting = false;
  for (auto at = open_.begin(); at != open_.end();) {
    const auto peer = at++;
    if (!(*peer)->is_gone()) continue;
    if ((*peer)->try_close()) closed_.splice(closed_.end(), open_, peer);
    else waiting = waiting || (*peer)->leases() == 0;
  }
  std::erase_if(by_owner_, [](const auto& e) { return e.second->is_closed(); });
  return waiting;
}

void Importer::inherit(Importer& parent) {
  {
    const std::lock_guard lock(mutex_);  // the watch thread may be at work already
    inherited_ = std::move(parent.inherited_);
    by_owner_ = std::move(parent.by_owner_);
    open_ = std::move(parent.open_);
    closed_ = std::move(parent.closed_);
  }
  for (Peer* peer : peers()) peer->watch(watch_, deposits_);
}

}  // namespace onecopy
