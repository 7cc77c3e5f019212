// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "onecopy/core/error.h"
#include "onecopy/memory/tensor.h"
#include "os/event_loop.h"
#include "os/mutex.h"
#include "share/borrower/peer.h"
#include "share/borrower/segment_retention.h"
#include "share/format/bundle_codec.h"
#include "share/owner/holds.h"
#include "share/owner/ledger.h"

namespace onecopy {

/// Opens handles: finds or makes the peer for a handle's owner, claims the block, and maps its segment. The segment
/// comes from a holder: the owner, the maker of the handle, or the segments retained here.
///
/// Thread safety: all members may be called concurrently, but for the fork ones.
class Importer {
 public:
  using PeerRef = std::shared_ptr<Peer>;
  using Peers = std::list<PeerRef>;
  using Holders = std::span<const ProcessId>;

  /// `contact` is called when the watch thread has been started for a first contact.
  Importer(const ProcessId& self, Ledger& ledger, EventLoop& loop, SegmentRetention& retention,
           Holds& holds, Wakeup contact);

  /// Opens on the device `user` of this process, which must be one of the memory's kind, or else on the memory's own.
  /// `holders` are asked for frozen memory as well as the maker of the handle.
  Tensor open(const HandleFields& handle, Access access, std::optional<Device> user = {},
              Holders holders = {});
  /// Maps segments of a connected owner, as far as that owner still has them: open() then need not ask for them one
  /// at a time. Has no effect for other owners. Throws timeout. REQUIRES: the caller holds a block of that owner.
  void fetch_ahead(const ProcessId& owner, std::span<const BundleOrigin> origins, Access access,
                   std::optional<Device> user);
  /// Ends the hold of this handle at its maker. Does not wait for an answer; if the message is lost, the hold
  /// expires.
  void acknowledge(const HandleFields& handle) noexcept;
  /// The peer for a live process; connects when there is none. Throws peer_died, timeout.
  PeerRef connect(const ProcessId& process, std::optional<Peer::SegmentRequest> wanted = {});
  /// The words of another process's streams; asks it the first time. Null if it is gone and was never asked: then
  /// there is no work to wait for.
  ForeignTimeline* timeline_of(const ProcessId& process);
  /// timeline_of() without a question; null if one would have to be asked.
  ForeignTimeline* known_timeline_of(const ProcessId& process) const;
  /// A peer by its public name; null if there is none.
  PeerRef find(const std::string& name) const;
  /// Makes sure that the owner's peer exists and the segment is mapped. That may take a connection, so it is kept off
  /// hot paths and locks. Null for our own segments.
  PeerRef prepare(const HandleFields& handle, Access access, Holders holders = {});

  /// Another owner's segment, in the first of all the ways in which this process has it: retained for a queue,
  /// opened, inherited through fork. Empty if it has it in none. Throws unsupported if it has the segment and cannot
  /// pass it on.
  std::optional<HeldSegment> find_held(const std::string& owner, std::uint32_t segment,
                                       Access access) const;
  /// Exports a segment of the group's for a third process, also after this process and the owner have died. If this
  /// borrower has not kept the descriptors, the owner is asked. Throws unsupported if the owner is gone then.
  ExportedMemory pass_on(const SharedBlocks& group, std::uint32_t segment);

  std::vector<PeerRef> peers() const;
  /// Returns how many peers there are, closed ones included.
  std::size_t peer_count() const noexcept {
    const LockGuard lock(mutex_);
    return open_.size() + closed_.size();
  }
  /// Lets go of owners that are gone and have no lease here. Returns true while there are such owners left.
  bool sweep() noexcept;

  // Around a fork.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  /// REQUIRES: locked.
  const Peers& peers_locked() const noexcept REQUIRES(mutex_) { return open_; }
  /// In a forked child: takes over what the parent had borrowed.
  void inherit(Importer& parent) NO_THREAD_SAFETY_ANALYSIS;
  /// The blocks of the parent and its ancestors that this process holds through fork.
  void add_inherited(Ledger& ledger) { inherited_.push_back(&ledger); }
  const std::vector<Ledger*>& inherited() const noexcept { return inherited_; }

 private:
  /// One thread at a time connects to a process.
  class SingleFlight;

  /// A claim that waits for no process. No claim: the owner has to be reached or asked.
  std::pair<Peer*, BlockRef> claim_known(const HandleFields& handle);
  Tensor open_claimed(Peer& peer, BlockRef ref, const HandleFields& handle, Access access,
                      std::optional<Device> user, Holders holders);
  PeerRef find_owner(const ProcessId& owner) const;
  PeerRef try_attach(Dial call, std::optional<Peer::SegmentRequest> wanted);
  PeerRef attach(Dial call, std::optional<Peer::SegmentRequest> wanted);
  PeerRef adopt(PeerRef peer);
  PeerRef connect_again(Peer& old, const Peer::SegmentRequest& wanted, const Error& silence);
  PeerRef reach_owner(const HandleFields& handle, Access access, std::optional<Device> user,
                      Holders holders);
  std::vector<ProcessId> to_be_asked(const HandleFields& handle, Holders holders) const;
  std::optional<HeldSegment> ask_holder(const ProcessId& holder, const HandleFields& handle, Access access,
                                        std::optional<Error>& why);
  std::optional<HeldSegment> ask_holders_soon(const HandleFields& handle, Access access, Holders holders);
  std::optional<HeldSegment> ask_holders(const HandleFields& handle, Access access, Holders holders);
  std::optional<ExportedMemory> ask_owner(const ProcessId& owner, std::uint32_t segment);
  void fetch(Peer& peer, const HandleFields& handle, Access access, std::optional<Device> user,
             Holders holders);
  bool try_fetch(Peer& peer, const Peer::SegmentRequest& wanted);
  /// Looks which owners that hung up are gone. Returns true while it has to be called again soon. Watch thread.
  bool poll_hangups();
  void forget_ended() noexcept REQUIRES(mutex_);
  void destroy_forgotten() noexcept REQUIRES(mutex_);
  void let_go_of_closed(const std::set<std::string>& owners) noexcept REQUIRES(mutex_);
  void fetch_again(Peer& old, const Peer::SegmentRequest& wanted);
  Tensor open_own(const HandleFields& handle, Access access);

  const ProcessId self_;
  Ledger& ledger_;
  EventLoop& loop_;
  SegmentRetention& retention_;
  Holds& holds_;
  const Wakeup contact_;
  mutable Mutex mutex_;
  Mutex turns_;  ///< before mutex_
  Condition turn_ended_;
  std::set<ProcessId> in_turn_ GUARDED_BY(turns_);  ///< processes to which a thread is connecting
  std::map<ProcessId, PeerRef> by_owner_ GUARDED_BY(mutex_);
  Peers open_ GUARDED_BY(mutex_);
  Peers closed_ GUARDED_BY(mutex_);  ///< closed, and perhaps still referenced by a caller
  std::map<ProcessId, ForeignTimeline*> timelines_
      GUARDED_BY(mutex_);  ///< of peers, some of which may be closed by now
  std::vector<Ledger*> inherited_;
  Timer looks_{loop_, [this] {
                 const bool again = poll_hangups();
                 return Timer::soon_if(sweep() || again);
               }};
};

}  // namespace onecopy
