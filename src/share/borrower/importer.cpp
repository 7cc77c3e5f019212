// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/importer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "share/format/process_name.h"

namespace onecopy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookAgain{1};
constexpr int kCalls = 3;  // of a broker that hangs up
/// The holders that are asked may have to read /proc.
constexpr std::chrono::milliseconds kLongestLookAgain{20};

Error stale(const HandleFields& handle) {
  return Error(
      ErrorCode::stale_handle,
      fmt::format(
          "the tensor was freed before the handle was opened: keep the Handle object alive until "
          "the receiver has opened it (for a single tensor of onecopy or torch, the tensor will do); "
          "it was block {} of its owner, generation {}",
          handle.block, handle.generation));
}

/// The owner and the handle must agree on where the memory is before it is touched.
void check_block_number(const HandleFields& handle) {
  if (handle.block >= kMaxBlocks)
    throw Error(ErrorCode::bad_handle, fmt::format("the handle names block {}; a process has at most {}",
                                                   handle.block, kMaxBlocks));
}

/// The driver may need the number of the process that opens the segment.
Peer::SegmentRequest wanted(std::uint32_t segment, SegmentKind kind, Access access,
                            std::optional<Device> user) {
  return {segment, access, backend(device_type(kind)).borrower_number(), user};
}

Peer::SegmentRequest wanted(const HandleFields& handle, Access access, std::optional<Device> user = {}) {
  return wanted(handle.segment, handle.kind, access, user);
}

/// The first look at a device takes its driver longer than a connection. It happens here, while the owner wakes up.
void look_at_device(const HandleFields& handle) noexcept {
  try {
    find_device(device_type(handle.kind), handle.device);
  } catch (const std::exception&) {  // mapping the segment reports the reason
  }
}

Error died(const HandleFields& handle) {
  return Error(
      ErrorCode::owner_died,
      fmt::format(
          "the process that owned this tensor has exited: keep that process running until others "
          "have opened the tensor, or put the tensor into a queue, which keeps it (where it still runs, "
          "it lives in another network namespace, and has no common ONECOPY_RUNTIME_DIR with this "
          "one); neither the maker of the handle nor this process holds its segment {}",
          handle.segment));
}

}  // namespace

class Importer::SingleFlight {
 public:
  SingleFlight(Importer& importer, const ProcessId& process) : importer_(importer), process_(process) {
    const auto deadline = Clock::now() + reply_timeout();
    const LockGuard lock(importer_.turns_);
    for (bool is_early = true; !importer_.in_turn_.insert(process_).second;
         is_early = importer_.turn_ended_.wait_until(importer_.turns_, deadline))
      if (!is_early)
        throw Error(ErrorCode::timeout,
                    "another thread is connecting to that process, and has had no answer yet; it may be "
                    "stopped (SIGSTOP, a debugger), try again once it runs");
  }
  ~SingleFlight() {
    {
      const LockGuard lock(importer_.turns_);
      importer_.in_turn_.erase(process_);
    }
    importer_.turn_ended_.notify_all();
  }
  SingleFlight(const SingleFlight&) = delete;
  SingleFlight& operator=(const SingleFlight&) = delete;

 private:
  Importer& importer_;
  const ProcessId& process_;
};

Importer::Importer(const ProcessId& self, Ledger& ledger, EventLoop& loop, SegmentRetention& retention,
                   Holds& holds, Wakeup contact)
    : self_(self),
      ledger_(ledger),
      loop_(loop),
      retention_(retention),
      holds_(holds),
      contact_(std::move(contact)) {}

Tensor Importer::open(const HandleFields& handle, Access access, std::optional<Device> user,
                      Holders holders) {
  check_block_number(handle);
  if (handle.owner == self_) return open_own(handle, access);
  if (auto [peer, ref] = claim_known(handle); ref)
    return open_claimed(*peer, std::move(ref), handle, access, user, holders);
  for (;;) {
    PeerRef peer = find_owner(handle.owner);
    if (!peer || peer->is_closed()) peer = reach_owner(handle, access, user, holders);
    BlockRef ref;
    try {
      ref = peer->claim(handle.block, handle.generation);
    } catch (const Error& silence) {
      if (!peer->is_disconnected() || peer->is_gone()) throw;
      peer = connect_again(*peer, wanted(handle, access, user), silence);
      ref = peer->claim(handle.block, handle.generation);
    }
    if (!ref && peer->is_gone()) {
      const LockGuard no_sweep(mutex_);  // which may have been in the middle of trying to close it
      if (peer->is_closed()) continue;
      ref = peer->claim(handle.block, handle.generation);
    }
    if (!ref) throw stale(handle);
    return open_claimed(*peer, std::move(ref), handle, access, user, holders);
  }
}

/// Replaces a connection that is over. If no socket listens either, the owner is dying:
/// the claim is repeated later, when the owner's end answers for it. Throws `silence` until then; peer_died if the owner
/// lives on without its sockets.
Importer::PeerRef Importer::connect_again(Peer& old, const Peer::SegmentRequest& wanted,
                                          const Error& silence) {
  try {
    return connect(old.owner(), wanted);
  } catch (const Error& e) {
    if (!is_absent(e)) throw;
    if (old.has_ended()) return old.shared_from_this();
    if (!old.is_out_of_reach()) throw Error(silence);
    throw Error(
        ErrorCode::peer_died,
        fmt::format(
            "the process that owned this tensor has freed it and closed its sockets, and lives: only it "
            "could say whether another process still holds the memory ({})",
            e.what()));
  }
}

/// The lock keeps the peer here until the claim does; a PeerRef of the caller's own takes twice as long.
std::pair<Peer*, BlockRef> Importer::claim_known(const HandleFields& handle) {
  const LockGuard lock(mutex_);
  const auto at = by_owner_.find(handle.owner);
  if (at == by_owner_.end() || at->second->is_closed()) return {};
  return {at->second.get(), at->second->try_claim(handle.block, handle.generation)};
}

Tensor Importer::open_claimed(Peer& peer, BlockRef ref, const HandleFields& handle, Access access,
                              std::optional<Device> user, Holders holders) {
  point("open.claimed");
  const Peer::ClaimRequest said{handle.block, handle.segment, handle.segment_size, handle.storage_size,
                                handle.kind};
  Peer::Location at = peer.locate(said, access, user);
  while (!at) {  // the lease keeps the segment from being retired
    fetch(peer, handle, access, user, holders);
    at = peer.locate(said, access, user);
  }
  PinnedRanges::await_unpinning(at.data, handle.storage_size);
  if (handle.hold != 0) acknowledge(handle);
  return {std::move(ref), at.data + handle.tensor_offset, handle.layout, user.value_or(at.identity->device),
          access};
}

Tensor Importer::open_own(const HandleFields& handle, Access access) {
  BlockRef ref = ledger_.try_open(handle.block, handle.generation);
  if (!ref) throw stale(handle);
  const ExportedBlock place = ledger_.export_block(handle.block, access);
  if (place.info.segment != handle.segment || handle.storage_size > place.info.size ||
      place.kind != handle.kind || place.segment_size != handle.segment_size)
    throw Error(ErrorCode::bad_handle, "the handle contradicts this process's own block table");
  if (handle.hold != 0) acknowledge(handle);
  return {std::move(ref), place.data + handle.tensor_offset, handle.layout, place.identity->device, access};
}

void Importer::fetch_ahead(const ProcessId& owner, std::span<const BundleOrigin> origins, Access access,
                           std::optional<Device> user) {
  const PeerRef peer = find_owner(owner);
  if (!peer || peer->is_disconnected()) return;
  std::set<std::uint32_t> seen;
  std::vector<Peer::SegmentRequest> missing, described;
  for (const BundleOrigin& origin : origins)
    if (origin.owner == owner && seen.insert(origin.segment).second &&
        !peer->has_segment(origin.segment, access))
      (is_weak(origin.kind) ? described : missing)
          .push_back(wanted(origin.segment, origin.kind, access,
                            user && user->type == origin.device_type ? user : std::nullopt));
  try {
    if (described.size() > 1) peer->fetch_described(described);
    if (missing.size() > 1) peer->fetch_ahead(missing);
  } catch (const Error& e) {
    if (!is_absent(e)) throw;
  }
}

void Importer::acknowledge(const HandleFields& handle) noexcept {
  if (handle.maker == self_) return holds_.end(handle.hold);
  const PeerRef maker = find_owner(handle.maker);
  if (!maker || !maker->acknowledge(handle.hold)) acknowledge_to(public_name(handle.maker), handle.hold);
}

Importer::PeerRef Importer::prepare(const HandleFields& handle, Access access, Holders holders) {
  if (handle.owner == self_) return nullptr;
  PeerRef peer = find_owner(handle.owner);
  if (!peer || peer->is_closed()) peer = reach_owner(handle, access, {}, holders);
  while (!peer->has_segment(handle.segment, access)) fetch(*peer, handle, access, {}, holders);
  return peer;
}

/// Null for a process that has ended. A process that hung up on us has not ended, nor one whose sockets are closed
/// while its device may still work.
ForeignTimeline* Importer::timeline_of(const ProcessId& process) {
  if (ForeignTimeline* known = known_timeline_of(process)) return known;
  const auto deadline = Clock::now() + kDeathTakesAtMost;
  for (;; std::this_thread::sleep_for(kLookAgain)) {
    try {
      ForeignTimeline& timeline = connect(process)->timeline();
      const LockGuard lock(mutex_);
      return timelines_[process] = &timeline;
    } catch (const Error& e) {
      if (!is_absent(e)) throw;
      const PeerRef peer = find_owner(process);
      if (!peer || peer->has_ended()) return nullptr;
      if (Clock::now() > deadline) throw;
    }
  }
}

ForeignTimeline* Importer::known_timeline_of(const ProcessId& process) const {
  const LockGuard lock(mutex_);
  const auto at = timelines_.find(process);
  return at == timelines_.end() ? nullptr : at->second;
}

Importer::PeerRef Importer::find_owner(const ProcessId& owner) const {
  const LockGuard lock(mutex_);
  const auto at = by_owner_.find(owner);
  return at == by_owner_.end() ? nullptr : at->second;
}

Importer::PeerRef Importer::find(const std::string& name) const {
  const LockGuard lock(mutex_);
  for (const auto& [id, peer] : by_owner_)
    if (peer->name() == name && !peer->is_closed()) return peer;
  return nullptr;
}

Importer::PeerRef Importer::connect(const ProcessId& process, std::optional<Peer::SegmentRequest> wanted) {
  const auto live = [&] {
    PeerRef peer = find_owner(process);
    return peer && !peer->is_disconnected() ? peer : nullptr;
  };
  if (PeerRef peer = live()) return peer;
  const DeadlineScope in_all(Clock::now() + reply_timeout());
  const SingleFlight turn(*this, process);
  if (PeerRef peer = live()) return peer;
  const PeerRef known = find_owner(process);
  if (known && known->has_ended())  // another may listen under its name
    throw Error(ErrorCode::peer_died, "that process has ended");
  if (std::optional<Dial> begun = EarlyDial::take(process))
    if (PeerRef peer = try_attach(*std::move(begun), wanted)) return peer;
  for (int calls = 0; calls < kCalls; ++calls)
    if (PeerRef peer = try_attach(Dial(process, reply_timeout()), wanted)) return peer;
  throw Error(
      ErrorCode::timeout,
      fmt::format("the owner of this memory lives and has hung up {} times; it may be short of CPU, "
                  "try again",
                  kCalls));
}

/// Null if the broker hung up: it does so on a caller that takes too long. A process that has ended refuses the next
/// call.
Importer::PeerRef Importer::try_attach(Dial call, std::optional<Peer::SegmentRequest> wanted) {
  try {
    return attach(std::move(call), wanted);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died) throw;
    return nullptr;
  }
}

Importer::PeerRef Importer::attach(Dial call, std::optional<Peer::SegmentRequest> wanted) {
  log_debug([&] {
    return fmt::format("connected to process {}, owner {}", call.credentials.pid, public_name(call.to));
  });
  PeerRef peer = Peer::begin_handshake(std::move(call), public_name(self_), wanted);
  loop_.start();  // while the other looks at our proof
  contact_();
  peer->finish_handshake();
  log_debug([&] { return fmt::format("attached to owner {}", peer->name()); });
  return adopt(std::move(peer));
}

/// A disconnected peer of that process stays: this process holds leases of it.
Importer::PeerRef Importer::adopt(PeerRef peer) {
  {
    const LockGuard lock(mutex_);
    open_.push_back(peer);  // first: a handler of its may run already when the next cannot be added
  }
  peer->watch(loop_, looks_, retention_);
  const LockGuard lock(mutex_);
  by_owner_[peer->owner()] = peer;
  return peer;
}

/// Reaches the owner itself while it lives, else frozen memory from a holder. In between it looks again: the owner's
/// sockets are closed, and its process or program is not yet known to have ended. Another user's socket under the
/// owner's name counts as none. A socket that does not answer may be such a one, or the owner, stopped.
Importer::PeerRef Importer::reach_owner(const HandleFields& handle, Access access,
                                        std::optional<Device> user, Holders holders) {
  const auto deadline = Clock::now() + kDeathTakesAtMost;
  look_at_device(handle);
  for (auto pause = kLookAgain;; pause = std::min(2 * pause, kLongestLookAgain)) {
    std::optional<Error> why;  // set if the reason is not that the owner has ended
    try {
      return connect(handle.owner, wanted(handle, access, user));
    } catch (const Error& e) {
      log_debug(
          [&] { return fmt::format("could not reach owner {}: {}", public_name(handle.owner), e.what()); });
      if (!is_absent(e) && e.code() != ErrorCode::timeout) throw;
      if (e.code() != ErrorCode::peer_died) why = e;
    }
    const bool is_silent = why && why->code() == ErrorCode::timeout;
    std::optional<HeldSegment> found =
        is_silent ? ask_holders_soon(handle, access, holders) : ask_holders(handle, access, holders);
    if (!found || (is_silent && !found->owner_gone)) throw why.value_or(died(handle));
    if (found->owner_gone) {
      const SingleFlight turn(*this, handle.owner);
      if (PeerRef peer = find_owner(handle.owner); peer && !peer->is_closed()) return peer;
      auto frozen = Peer::frozen(handle.owner, std::move(found->table));
      frozen->map_segment(wanted(handle, access, user), std::move(found->memory));
      // Last: no caller holds it yet, so any sweep may close it from here on.
      return adopt(std::move(frozen));
    }
    if (Clock::now() > deadline)
      throw Error(ErrorCode::peer_died,
                  "the owner of this tensor lives but cannot be reached from here; processes in "
                  "different network namespaces need a common ONECOPY_RUNTIME_DIR");
    std::this_thread::sleep_for(pause);
  }
}

/// Holders that are not known to be silent come first.
std::vector<ProcessId> Importer::to_be_asked(const HandleFields& handle, Holders holders) const {
  std::vector<ProcessId> asked(holders.begin(), holders.end());
  asked.push_back(handle.maker);
  std::set<ProcessId> seen{handle.owner, self_};
  std::erase_if(asked, [&](const ProcessId& holder) { return !seen.insert(holder).second; });
  std::stable_partition(asked.begin(), asked.end(), [&](const ProcessId& holder) {
    const PeerRef peer = find_owner(holder);
    return !peer || peer->is_disconnected() || !peer->is_silent();
  });
  return asked;
}

/// Asks the holders when the time is up: a tenth of a second for each.
std::optional<HeldSegment> Importer::ask_holders_soon(const HandleFields& handle, Access access,
                                                      Holders holders) {
  const DeadlineScope at_most(Clock::now());
  return ask_holders(handle, access, holders);
}

/// Empty if the holder is gone or does not have it. Also empty if it may have it: then `why` says the obstacle.
std::optional<HeldSegment> Importer::ask_holder(const ProcessId& holder, const HandleFields& handle,
                                                Access access, std::optional<Error>& why) {
  try {
    return connect(holder)->fetch_foreign(public_name(handle.owner), wanted(handle, access));
  } catch (const Error& e) {
    const bool may_have_it = e.code() == ErrorCode::timeout || e.code() == ErrorCode::unsupported;
    if (!may_have_it && !is_absent(e) && e.code() != ErrorCode::owner_died) throw;
    if (may_have_it && (!why || e.code() == ErrorCode::timeout)) why = e;
    return {};
  }
}

/// Empty if all say that they do not have it. Throws timeout if a holder that may have it does not answer,
/// unsupported if one has it and cannot pass it on.
std::optional<HeldSegment> Importer::ask_holders(const HandleFields& handle, Access access,
                                                 Holders holders) {
  constexpr std::chrono::milliseconds kOneOfManyTakesAtMost{2000};
  std::optional<Error> why;
  try {
    if (auto held = find_held(public_name(handle.owner), handle.segment, access)) return held;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported) throw;
    why = e;
  }
  const std::vector<ProcessId> asked = to_be_asked(handle, holders);
  for (const ProcessId& holder : asked) {
    const auto most = &holder == &asked.back() ? reply_timeout_ms.load() : kOneOfManyTakesAtMost.count();
    const DeadlineScope scope(Clock::now() + std::min(reply_timeout(), std::chrono::milliseconds(most)));
    if (auto held = ask_holder(holder, handle, access, why)) return held;
  }
  if (why) throw Error(*why);
  return {};
}

void Importer::fetch(Peer& peer, const HandleFields& handle, Access access, std::optional<Device> user,
                     Holders holders) {
  const Peer::SegmentRequest segment = wanted(handle, access, user);
  if (try_fetch(peer, segment)) return;
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
  std::optional<HeldSegment> found = ask_holders(handle, access, holders);
  if (!found) throw not_kept.value_or(died(handle));
  peer.map_segment(segment, std::move(found->memory));
}

/// Fetches from the owner itself. Returns false if it is gone, true if it has the segment or must be asked again.
bool Importer::try_fetch(Peer& peer, const Peer::SegmentRequest& wanted) {
  const auto is_answered = [](auto&& ask) {
    try {
      ask();
      return true;
    } catch (const Error& e) {
      if (!is_absent(e)) throw;
      return false;
    }
  };
  if (!peer.is_disconnected() && is_answered([&] { peer.fetch_segment(wanted); })) return true;
  return !peer.has_ended() && is_answered([&] { fetch_again(peer, wanted); });
}

/// The owner closed the connection and lives: it was short of memory or descriptors when we last spoke. Our leases of
/// the old connection stay good as long as this process lives.
void Importer::fetch_again(Peer& old, const Peer::SegmentRequest& wanted) {
  const PeerRef peer = connect(old.owner());
  if (peer.get() == &old)
    return std::this_thread::sleep_for(kLookAgain);  // the watch thread has not seen the end yet
  old.map_segment(wanted, peer->fetch_memory(wanted));
}

ExportedMemory Importer::pass_on(const SharedBlocks& group, std::uint32_t segment) {
  try {
    ExportedMemory memory = group.export_segment(segment, Access::read_write);
    require_all(memory);
    return memory;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported || group.owner() == self_) throw;
    auto memory = ask_owner(group.owner(), segment);
    if (!memory) throw;
    require_all(*memory);
    return *std::move(memory);
  }
}

/// Empty if the owner is gone.
std::optional<ExportedMemory> Importer::ask_owner(const ProcessId& owner, std::uint32_t segment) {
  try {
    return connect(owner)->fetch_memory({segment, Access::read_write});
  } catch (const Error& e) {
    if (!is_absent(e)) throw;
    return {};
  }
}

std::vector<Importer::PeerRef> Importer::peers() const {
  const LockGuard lock(mutex_);
  std::vector<PeerRef> peers;
  for (const auto& peer : open_)
    if (!peer->is_closed()) peers.push_back(peer);
  return peers;
}

bool Importer::poll_hangups() {
  bool again = false;
  for (const PeerRef& peer : peers()) again = peer->poll_hangup() || again;
  return again;
}

bool Importer::sweep() noexcept {
  const LockGuard lock(mutex_);
  bool waiting = false;
  std::set<std::string> closed;
  for (auto at = open_.begin(); at != open_.end();) {
    const auto peer = at++;
    if (!(*peer)->is_gone()) continue;
    if ((*peer)->try_close()) closed_.splice(closed_.end(), open_, peer);
    else waiting = waiting || (*peer)->leases() == 0;
    if (!(*peer)->is_closed()) continue;
    closed.insert((*peer)->name());
    const auto known = by_owner_.find((*peer)->owner());
    if (known == by_owner_.end() || known->second != *peer) (*peer)->forget_process();
  }
  forget_ended();
  let_go_of_closed(closed);
  destroy_forgotten();
  return waiting;
}

/// A process that has become another program is not forgotten: a device may still work for it, see timeline_of().
void Importer::forget_ended() noexcept {
  std::erase_if(by_owner_, [](const auto& e) {
    if (!e.second->is_closed() || !e.second->has_ended()) return false;
    e.second->forget_process();
    return true;
  });
}

/// On the watch thread, which may be in the middle of one of their handlers elsewhere. A peer that is forgotten later
/// is destroyed by the sweep after the next end of an owner.
void Importer::destroy_forgotten() noexcept {
  if (!loop_.runs_here()) return;
  std::erase_if(closed_, [](const PeerRef& peer) { return peer.use_count() == 1 && peer->can_go(); });
}

/// Unless this process holds blocks of that owner in another way, too.
void Importer::let_go_of_closed(const std::set<std::string>& owners) noexcept {
  for (const std::string& owner : owners) {
    const auto is_open = [&](const auto& peer) { return peer->name() == owner && !peer->is_closed(); };
    const auto is_its = [&](const Ledger* ledger) { return public_name(ledger->owner()) == owner; };
    if (std::any_of(open_.begin(), open_.end(), is_open) ||
        std::any_of(inherited_.begin(), inherited_.end(), is_its))
      continue;
    retention_.release_all_of(owner);
  }
}

void Importer::inherit(Importer& parent) {
  {
    const LockGuard lock(mutex_);  // the watch thread may be at work already
    inherited_ = std::move(parent.inherited_);
    by_owner_ = std::move(parent.by_owner_);
    open_ = std::move(parent.open_);
    closed_ = std::move(parent.closed_);
  }
  for (const PeerRef& peer : peers()) peer->watch(loop_, looks_, retention_);
}

}  // namespace onecopy
