// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/peer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/throw_error.h"
#include "os/deadline_scope.h"
#include "os/log.h"
#include "share/format/process_name.h"

namespace onecopy {
namespace {

using Clock = std::chrono::steady_clock;

/// Returns whether the memory is frozen: memory of the host is frozen once the owner's program has ended, memory of a
/// device, which may still be at work, once the owner's process has ended.
bool is_frozen(const Peer& peer, const ExportedMemory& memory) {
  return peer.process().has_ended() || (device_type(memory.kind) == DeviceType::cpu && peer.has_left());
}

bool is_frozen(const Ledger& ledger, const ExportedMemory& memory) {
  return device_type(memory.kind) == DeviceType::cpu ? ledger.has_program_ended()
                                                     : is_gone(ledger.origin());
}

/// Exports the group's segment. Returns nothing if the group does not have the segment, or if it cannot pass the
/// segment on, in which case it sets `why`. `holder` knows whether the group's owner has ended.
template <class Holder>
std::optional<HeldSegment> try_export(const SharedBlocks& group, const Holder& holder,
                                      std::uint32_t segment, Access access, std::optional<Error>& why) {
  try {
    Fd table = group.export_table();
    ExportedMemory memory = group.export_segment(segment, access);
    const bool owner_gone = is_frozen(holder, memory);
    return HeldSegment{std::move(table), std::move(memory), owner_gone};
  } catch (const Error& e) {  // not opened here, or made after the fork: another group may have it
    if (e.code() == ErrorCode::unsupported) why = e;
    else if (e.code() != ErrorCode::owner_died && e.code() != ErrorCode::stale_handle) throw;
    return {};
  }
}

}  // namespace

class Peers::SingleFlight {
 public:
  SingleFlight(Peers& peers, const ProcessId& process) : peers_(peers), process_(process) {
    const auto deadline = Clock::now() + reply_timeout();
    const LockGuard lock(peers_.connecting_mutex_);
    for (bool is_early = true; !peers_.connecting_.insert(process_).second;
         is_early = peers_.connecting_ended_.wait_until(peers_.connecting_mutex_, deadline))
      if (!is_early)
        throw Error(ErrorCode::timeout,
                    "another thread is connecting to that process, and has had no answer yet; it may be "
                    "stopped (SIGSTOP, a debugger), try again once it runs");
  }
  ~SingleFlight() {
    {
      const LockGuard lock(peers_.connecting_mutex_);
      peers_.connecting_.erase(process_);
    }
    peers_.connecting_ended_.notify_all();
  }
  SingleFlight& operator=(SingleFlight&&) = delete;

 private:
  Peers& peers_;
  const ProcessId& process_;
};

Peers::Peers(EventLoop& loop, SegmentRetention& retention, Wakeup contact)
    : loop_(loop), retention_(retention), contact_(std::move(contact)) {}

Peers::PeerRef Peers::connect(const ProcessId& process, std::optional<SegmentRequest> wanted) {
  constexpr int kCalls = 3;  // the max number of calls to a broker that hangs up
  const auto live = [&] {
    PeerRef peer = find(process);
    return peer && !peer->is_closed() && !peer->broker().is_over() ? peer : nullptr;
  };
  if (PeerRef peer = live()) return peer;
  const DeadlineScope in_all(Clock::now() + reply_timeout());
  const SingleFlight connecting(*this, process);
  if (PeerRef peer = live()) return peer;
  const PeerRef known = find(process);
  if (known && known->process().has_ended())  // another process may listen under its name
    throw Error(ErrorCode::peer_died, "that process has ended");
  if (std::optional<Dial> begun = EarlyDial::take(process))
    if (PeerRef peer = try_attach(*std::move(begun), wanted)) return peer;
  for (int calls = 0; calls < kCalls; ++calls)
    if (PeerRef peer = try_attach(Dial(process, reply_timeout()), wanted)) return peer;
  throw_error(ErrorCode::timeout,
              "the owner of this memory lives and has hung up {} times; it may be short of CPU, try again",
              kCalls);
}

/// Connects. Returns null if the broker hung up, as it does on a caller that takes too long. If the process has ended,
/// the next call is refused.
Peers::PeerRef Peers::try_attach(Dial call, const std::optional<SegmentRequest>& wanted) {
  try {
    log_debug(
        [&] { return fmt::format("connected to process {}, owner {}", call.credentials.pid, call.name); });
    PeerRef peer = Peer::begin_handshake(std::move(call), wanted);
    loop_.start();  // started while the other process checks our proof
    contact_();
    peer->finish_handshake();
    log_debug([&] { return fmt::format("attached to owner {}", peer->process().name()); });
    return add(std::move(peer));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died) throw;
    return nullptr;
  }
}

/// Adds a peer. Keeps a disconnected peer of the same process, because this process has leases of it.
Peers::PeerRef Peers::add(PeerRef peer) {
  {
    const LockGuard lock(mutex_);
    open_.push_back(peer);  // added first, because its handlers may run even if a later step throws
  }
  peer->watch(loop_, looks_, retention_);
  const LockGuard lock(mutex_);
  by_process_[peer->process().id()] = peer;
  known_of(peer->process().id()) = peer.get();
  return peer;
}

Peers::PeerRef Peers::freeze(const ProcessId& owner, HeldSegment held, const SegmentRequest& wanted) {
  const SingleFlight connecting(*this, owner);
  if (PeerRef peer = find_open(owner)) return peer;
  PeerRef frozen = Peer::frozen(owner, public_name(owner), std::move(held.table));
  frozen->blocks().segments().map(wanted, std::move(held.memory));
  // Added last, because from then on a sweep may close the peer, which no caller holds yet.
  return add(std::move(frozen));
}

Peers::PeerRef Peers::find(const ProcessId& process) const {
  const LockGuard lock(mutex_);
  const auto at = by_process_.find(process);
  return at == by_process_.end() ? nullptr : at->second;
}

Peers::PeerRef Peers::find_open(const ProcessId& process) const {
  PeerRef peer = find(process);
  return peer && !peer->is_closed() ? peer : nullptr;
}

/// Takes no lock. A guard keeps the peer until the claim does, since a peer leaves `peers_by_first_byte_` before
/// destroy_forgotten() looks for readers.
std::pair<BorrowedBlocks*, BlockRef> Peers::try_claim(const HandleFields& handle) noexcept {
  const std::atomic<Peer*>& known = known_of(handle.owner);
  Peer* const peer = known.load();
  const HazardGuard here(peer);
  if (!peer || known.load() != peer) return {};
  point("open.found");
  if (peer->process().id() != handle.owner) return {};
  BorrowedBlocks& blocks = peer->blocks();
  return {&blocks, blocks.try_claim(handle.block, handle.generation, []() noexcept { return false; })};
}

std::optional<BlockRef> Peers::claim_frozen(Peer& peer, const HandleFields& handle) {
  const LockGuard no_sweep(mutex_);  // a sweep may be in the middle of closing the peer
  if (peer.is_closed()) return {};
  return peer.claim(handle.block, handle.generation);
}

/// Returns the timeline of a process, whose words count the marks in its streams; null if the process has ended. A
/// process that hung up has not ended, nor has one whose sockets are closed while its device may still be at work.
ForeignTimeline* Peers::timeline_of(const ProcessId& process) {
  if (ForeignTimeline* known = known_timeline_of(process)) return known;
  const auto deadline = Clock::now() + kDeathTakesAtMost;
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    try {
      ForeignTimeline& timeline = connect(process)->timeline();
      const LockGuard lock(mutex_);
      return timelines_[process] = &timeline;
    } catch (const Error& e) {
      if (!is_absent(e)) throw;
      const PeerRef peer = find(process);
      if (!peer || peer->process().has_ended()) return nullptr;
      if (Clock::now() > deadline) throw;
    }
  }
}

ForeignTimeline* Peers::known_timeline_of(const ProcessId& process) const {
  const LockGuard lock(mutex_);
  const auto at = timelines_.find(process);
  return at == timelines_.end() ? nullptr : at->second;
}

std::optional<HeldSegment> Peers::find_segment(const SegmentKey& segment, Access access) const {
  std::optional<Error> why;
  {
    const LockGuard no_sweep(mutex_);  // a sweep could give segments back while they are being exported
    for (const auto& peer : open_)
      if (peer->process().name() == segment.first && !peer->is_closed())
        if (auto held = try_export(peer->blocks(), *peer, segment.second, access, why)) return held;
  }
  for (const Ledger* ledger : inherited_)
    if (public_name(ledger->owner()) == segment.first)
      if (auto held = try_export(*ledger, *ledger, segment.second, access, why)) return held;
  if (why) throw Error(*why);
  return {};
}

std::vector<Peers::PeerRef> Peers::list() const {
  const LockGuard lock(mutex_);
  std::vector<PeerRef> peers;
  for (const auto& peer : open_)
    if (!peer->is_closed()) peers.push_back(peer);
  return peers;
}

std::size_t Peers::size() const noexcept {
  const LockGuard lock(mutex_);
  return open_.size() + closed_.size();
}

bool Peers::poll_hangups() {
  bool again = false;
  for (const PeerRef& peer : list()) again = peer->poll_hangup() || again;
  return again;
}

void Peers::inherit(Peers& parent) {
  {
    const LockGuard lock(mutex_);  // the watch thread may already be running
    inherited_ = std::move(parent.inherited_);
    by_process_ = std::move(parent.by_process_);
    open_ = std::move(parent.open_);
    closed_ = std::move(parent.closed_);
    for (const auto& [id, peer] : by_process_) known_of(id) = peer.get();
  }
  for (const PeerRef& peer : list()) peer->watch(loop_, looks_, retention_);
}

}  // namespace onecopy
