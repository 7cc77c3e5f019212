// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "onecopy/memory/tensor.h"
#include "share/deposits.h"
#include "share/holds.h"
#include "share/ledger.h"
#include "share/peer.h"
#include "share/watch.h"

namespace onecopy {

/// Opens handles: finds or makes the peer for a handle's owner, claims the block, maps its segment
/// from whoever still holds it (the owner, the maker of the handle, our own deposits).
///
/// Thread safety: all members may be called concurrently, but for the fork ones.
class Importer {
 public:
  using Peers = std::list<std::unique_ptr<Peer>>;

  Importer(const ProcessId& self, Ledger& ledger, Watch& watch, Deposits& deposits, Holds& holds);

  /// On the device `user` of this process, which must be one of the memory's kind, or else on the memory's own.
  Tensor open(const HandleFields& handle, Access access, std::optional<Device> user = {});
  /// Tells whoever holds the block for this handle that it need not any more. Does not wait for an
  /// answer; what gets lost is made good by the hold's expiry.
  void acknowledge(const HandleFields& handle) noexcept;
  /// The peer for a live process; connects when there is none. Throws peer_died, timeout.
  Peer& connect(const ProcessId& process, std::optional<Peer::Wanted> wanted = {});
  /// The words of another process's streams; asks it the first time. Null when it is gone and was never
  /// asked: there is nothing to wait for any more.
  ForeignTimeline* timeline_of(const ProcessId& process);
  /// The same without a question; null when one would have to be asked.
  ForeignTimeline* known_timeline_of(const ProcessId& process) const;
  /// A peer by its public name; null when we have none.
  Peer* find(const std::string& name) const;
  /// Makes sure that the owner's peer exists and the segment is mapped, which may take a connection
  /// and so is kept off hot paths and locks. Null: it is our own.
  Peer* prepare(const HandleFields& handle, Access access);

  /// What a third process needs to map a segment of the keeper's, also after this process and the owner have
  /// died. A borrower may not have kept it; then the owner is asked. Throws unsupported when it is gone.
  ExportedMemory pass_on(const SharedKeeper& keeper, std::uint32_t segment);

  std::vector<Peer*> peers() const;
  /// Lets go of owners that are gone and not leased from. True while there are such owners left.
  bool sweep() noexcept;

  // Around a fork.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  /// REQUIRES: locked.
  const Peers& peers_locked() const noexcept { return open_; }
  /// In a forked child: takes over what the parent had borrowed.
  void inherit(Importer& parent);
  /// The parent's blocks, and its parent's, that this process holds through fork.
  void add_inherited(Ledger& ledger) { inherited_.push_back(&ledger); }
  const std::vector<Ledger*>& inherited() const noexcept { return inherited_; }

 private:
  /// One thread at a time connects to a process.
  class Turn;

  Peer* find_owner(const ProcessId& owner) const;
  Peer& attach(Call call, std::optional<Peer::Wanted> wanted);
  Peer& adopt(std::unique_ptr<Peer> peer);
  Peer& reach_owner(const HandleFields& handle, Access access, std::optional<Device> user);
  std::optional<HeldSegment> ask_holders(const HandleFields& handle, Access access);
  std::optional<ExportedMemory> ask_owner(const ProcessId& owner, std::uint32_t segment);
  void fetch(Peer& peer, const HandleFields& handle, Access access, std::optional<Device> user);
  void fetch_again(Peer& old, const Peer::Wanted& wanted);
  Tensor open_own(const HandleFields& handle, Access access);

  const ProcessId self_;
  Ledger& ledger_;
  Watch& watch_;
  Deposits& deposits_;
  Holds& holds_;
  mutable std::mutex mutex_;
  std::mutex turns_;  ///< before mutex_
  std::condition_variable turn_ended_;
  std::set<ProcessId> in_turn_;  ///< to these a thread is connecting
  std::map<ProcessId, Peer*> by_owner_;
  Peers open_;
  Peers closed_;                                     ///< caches point at them
  std::map<ProcessId, ForeignTimeline*> timelines_;  ///< of peers, which may be closed by now
  std::vector<Ledger*> inherited_;
};

}  // namespace onecopy
