// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/order/timeline.h"
#include "onecopy/core/error.h"
#include "os/event_loop.h"
#include "os/mutex.h"
#include "share/borrower/borrowed_blocks.h"
#include "share/borrower/broker_client.h"
#include "share/borrower/segment_retention.h"
#include "share/format/wire.h"
#include "share/owner/claim_memory.h"
#include "share/owner/ledger.h"

namespace onecopy {

/// A process as its borrower sees it: the process, the connection to its broker, and its blocks that are borrowed here.
///
/// If the owner is dead and no lease is left, try_close() gives back the peer's memory and descriptors. The peer itself
/// goes with the last std::shared_ptr to it. Callers that remember a peer have a shared pointer; blocks need none,
/// since they are leases.
///
/// Life of the owner: alive -> disconnected (the connection is over: look) -> gone. The process is gone if its pidfd
/// says so. If it has no memory of a device here, it is also gone once its process has become another program.
///
/// Thread safety: all members may be called concurrently, but for the fork ones.
class Peer final : public std::enable_shared_from_this<Peer> {
 public:
  /// The first half of a connection: proves our identity to the called process, and asks for `wanted`. Throws
  /// peer_died, other_user, bad_secret, timeout...
  static std::shared_ptr<Peer> begin_handshake(Dial call, const std::string& my_name,
                                               std::optional<SegmentRequest> wanted = {});
  /// The second half: attaches, and maps the wanted segment. Other work may be done between the two halves. Throws as
  /// begin_handshake(). REQUIRES: after a throw the Peer is only destroyed.
  void finish_handshake();
  /// An owner that is gone, as a holder of its block table described it. `name` is public_name() of the owner.
  static std::shared_ptr<Peer> frozen(const ProcessId& owner, std::string name, Fd table);

  /// Puts the connection and the pidfd under watch. `looks` is requested when the connection or its process ends.
  void watch(EventLoop& loop, Timer& looks, SegmentRetention& retention);

  const OwnerProcess& process() const noexcept { return process_; }
  BrokerClient& broker() noexcept { return broker_; }
  BorrowedBlocks& blocks() noexcept { return blocks_; }

  /// Takes a lease on the block if its generation is still the handle's. Asks the owner if only that can tell. Returns
  /// an empty reference for a stale block. Throws timeout if the owner does not answer.
  BlockRef claim(std::uint32_t block, std::uint64_t generation);
  /// Returns whether the connection is over and claim() needed an answer longer ago than a death takes. Then the owner
  /// lives on without its sockets.
  bool is_out_of_reach() const noexcept;

  /// Asks the owner for the descriptors and vendor bytes that map the segment. Throws peer_died.
  ExportedMemory fetch_memory(const SegmentRequest& wanted);
  /// Asks the owner for several segments, and maps each while the owner works on the next. Leaves out segments that
  /// the owner refuses, that cannot be mapped, or that take more than one message. Throws peer_died, timeout.
  /// `described`: segments whose kind takes no descriptors.
  void fetch_ahead(std::span<const SegmentRequest> wanted, std::span<const SegmentRequest> described);

  /// The words that this process's streams write. Throws peer_died.
  ForeignTimeline& timeline();
  /// Logs it if streams of ours wait for words that its streams will never write. Returns true while some wait. Never
  /// waits.
  bool poll_waits();

  bool is_gone() const noexcept { return process_.is_gone(); }
  /// Returns whether the owner's program has ended, by exec or with its process. The owner's device may still be at
  /// work.
  bool has_left() const noexcept;
  /// Looks whether the owner is gone once the connection is over. Returns true while it has to be called again soon.
  /// Watch thread.
  bool poll_hangup();
  bool is_closed() const noexcept { return blocks_.is_closed(); }
  /// Gives memory and descriptors back if the owner is gone and has no lease here. Returns true when all is given
  /// back: then not again.
  bool try_close() noexcept;
  /// Returns whether it may be destroyed once no caller remembers it: no stream may wait for its words. REQUIRES:
  /// try_close() has given all back.
  bool is_destroyable() noexcept;
  /// Gives the process's descriptor back. REQUIRES: it is closed.
  void forget_process() noexcept { process_.forget(); }

  // Called around a fork. Before: a page and a connection for the child, announced to the owner.
  void lock() NO_THREAD_SAFETY_ANALYSIS;
  void unlock() NO_THREAD_SAFETY_ANALYSIS;
  void prepare_fork();
  void finish_fork_in_parent() noexcept { fork_page_.reset(); }
  void finish_fork_in_child() noexcept NO_THREAD_SAFETY_ANALYSIS;

 private:
  Peer(const ProcessId& owner, std::string name, UnixSocket socket = {}, int pid = 0, Fd pidfd = {});
  static std::shared_ptr<Peer> make(Peer* made);
  void prove(const wire::Nonce& mine, const std::string& my_name);
  ExportedMemory with_rest(ExportedMemory memory, std::uint32_t segment);
  void fetch_described(std::span<const SegmentRequest> wanted);
  void map_answer(const SegmentRequest& wanted, Packet packet) noexcept;
  void map_answers(std::span<const SegmentRequest> wanted, const Packet& packet) noexcept;
  void try_map(const SegmentRequest& wanted, ExportedMemory memory) noexcept;
  void set_table(Fd file);
  bool ask_owner(std::uint32_t block, std::uint64_t generation, std::optional<Error>& silence) noexcept;
  bool wait_until_frozen() noexcept;
  bool uses_devices() noexcept;
  void take_news(Packet packet);
  void retain_for_owner(Packet packet);
  bool end();
  bool look_at_words() REQUIRES(timeline_mutex_);

  OwnerProcess process_;
  BorrowedBlocks blocks_{process_};
  BrokerClient broker_;

  mutable Mutex timeline_mutex_;
  std::unique_ptr<ForeignTimeline> timeline_ GUARDED_BY(timeline_mutex_);

  std::optional<SegmentRequest> wanted_;  ///< with the welcome
  /// The time when a claim first needed an answer after the end of the connection.
  std::atomic<std::chrono::steady_clock::time_point> unanswered_since_{};
  int first_looks_ = 3;  ///< that are left, once the connection is over
  std::chrono::steady_clock::time_point next_look_{};
  EventLoop* loop_ = nullptr;
  Timer* looks_ = nullptr;
  SegmentRetention* retention_ = nullptr;

  std::optional<ForkPage> fork_page_;
};

/// The processes that this process is connected to, or holds memory of. Connects to each once, and lets go of a process
/// that has ended and has no lease here.
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
  /// Returns the peer of a dead owner. Makes one from what a holder has of the owner unless another thread has made
  /// one.
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
  /// Lets go of owners that are gone and have no lease here. Returns true while dead owners are left.
  bool sweep() noexcept;

  // Called around a fork.
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
