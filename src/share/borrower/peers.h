// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "os/event_loop.h"
#include "os/mutex.h"
#include "share/borrower/peer.h"
#include "share/borrower/segment_retention.h"
#include "share/owner/ledger.h"

namespace onecopy {

/// The processes that this process is connected to, or holds memory of. Connects to each once, and lets go of those
/// that have ended and have no lease here.
///
/// Thread safety: all members may be called concurrently, but for the fork ones.
class Peers {
 public:
  using PeerRef = std::shared_ptr<Peer>;
  using List = std::list<PeerRef>;

  /// `name` is public_name() of this process. `contact` is called when the watch thread has been started for a first
  /// contact.
  Peers(std::string name, EventLoop& loop, SegmentRetention& retention, Wakeup contact);

  /// Returns the peer of a live process; connects when there is none, and asks for `wanted` on the way. Throws
  /// peer_died, timeout.
  PeerRef connect(const ProcessId& process, std::optional<SegmentRequest> wanted = {});
  /// Returns the peer of a dead owner, made from what a holder has of it, unless there is one meanwhile.
  PeerRef freeze(const ProcessId& owner, HeldSegment held, const SegmentRequest& wanted);
  /// Returns the last peer of that process, which may be closed; null if there was none.
  PeerRef find(const ProcessId& process) const;
  /// Returns find(), but null for a closed peer.
  PeerRef find_open(const ProcessId& process) const;
  /// Takes a lease without waiting for a process. Returns no lease if the owner has to be reached or asked. The lease
  /// keeps the blocks.
  std::pair<BorrowedBlocks*, BlockRef> try_claim(const HandleFields& handle) noexcept;
  /// Takes a lease of a dead owner's block. Returns an empty reference for a stale block, and no value if a sweep has
  /// closed the peer. REQUIRES: the peer is gone.
  std::optional<BlockRef> claim_frozen(Peer& peer, const HandleFields& handle);
  /// The words of another process's streams; asks it the first time. Null if it is gone and was never asked: then
  /// there is no work to wait for.
  ForeignTimeline* timeline_of(const ProcessId& process);
  /// Returns timeline_of() without a question; null if a question is needed.
  ForeignTimeline* known_timeline_of(const ProcessId& process) const;
  /// A segment of that owner (public_name()) as a peer or an ancestor's ledger has it; empty if none has it. Throws
  /// unsupported if one has it and cannot pass it on.
  std::optional<HeldSegment> find_segment(const SegmentKey& segment, Access access) const;

  std::vector<PeerRef> list() const;
  /// Returns how many peers there are, closed ones included.
  std::size_t size() const noexcept;
  /// Lets go of owners that are gone and have no lease here. Returns true while there are such owners left.
  bool sweep() noexcept;

  // Around a fork.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  /// REQUIRES: locked.
  const List& list_locked() const noexcept REQUIRES(mutex_) { return open_; }
  /// Takes over what the parent had borrowed. REQUIRES: this is a forked child.
  void inherit(Peers& parent) NO_THREAD_SAFETY_ANALYSIS;
  /// The blocks of the parent and its ancestors that this process holds through fork.
  void add_inherited(Ledger& ledger) { inherited_.push_back(&ledger); }

 private:
  /// A thread's turn to connect to a process.
  class SingleFlight;

  PeerRef try_attach(Dial call, const std::optional<SegmentRequest>& wanted);
  PeerRef add(PeerRef peer);
  /// Looks which owners that hung up are gone. Returns true while it has to be called again soon. Watch thread.
  bool poll_hangups();
  void forget_ended() noexcept REQUIRES(mutex_);
  void destroy_forgotten() noexcept REQUIRES(mutex_);
  void release_closed(const std::set<std::string>& owners) noexcept REQUIRES(mutex_);

  const std::string name_;
  EventLoop& loop_;
  SegmentRetention& retention_;
  const Wakeup contact_;
  mutable Mutex mutex_;
  Mutex turns_;  ///< before mutex_
  Condition turn_ended_;
  std::set<ProcessId> in_turn_ GUARDED_BY(turns_);  ///< processes to which a thread is connecting
  std::map<ProcessId, PeerRef> by_process_ GUARDED_BY(mutex_);
  List open_ GUARDED_BY(mutex_);
  List closed_ GUARDED_BY(mutex_);  ///< closed, and perhaps still referenced by a caller
  std::map<ProcessId, ForeignTimeline*> timelines_
      GUARDED_BY(mutex_);  ///< of peers, some of which may be closed by now
  std::vector<Ledger*> inherited_;
  Timer looks_{loop_, [this] {
                 const bool again = poll_hangups();
                 return Timer::soon_if(sweep() || again);
               }};
};

}  // namespace onecopy
