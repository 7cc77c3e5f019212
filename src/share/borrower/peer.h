// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
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

/// A process from which this one borrows: the process, the connection to its broker, and the borrowed blocks.
///
/// If the owner is dead, try_close() leaves the mapped segments with one descriptor each, a copy of the records and the
/// counts of the leases; if no lease is left, it gives these back, too. The peer itself is destroyed with the last
/// std::shared_ptr to it. Callers that remember a peer have a shared pointer; blocks need none, since they are leases.
///
/// An owner that lives can be left, too: a message ends the claims, and the next open connects again.
///
/// States of the owner: alive -> disconnected (the connection is over, so look at the process) -> gone. A process is
/// gone when its pidfd says so. If no memory of a device is mapped here, it also counts as gone once it runs another
/// program.
///
/// Thread safety: all members may be called concurrently, but for the fork ones.
class Peer final : public std::enable_shared_from_this<Peer> {
 public:
  /// Does the first half of a connection: proves our identity to the called process, and asks for `wanted`. Throws
  /// peer_died, other_user, bad_secret, timeout and others.
  static std::shared_ptr<Peer> begin_handshake(Dial call, std::optional<SegmentRequest> wanted = {});
  /// Does the second half: attaches to the process and maps the wanted segment. The caller may do other work between
  /// the two halves. Throws what begin_handshake() throws, after which the Peer may only be destroyed.
  void finish_handshake();
  /// Returns a peer for an owner that is gone, from what a holder of its block table knows. `name` is public_name() of
  /// the owner.
  static std::shared_ptr<Peer> frozen(const ProcessId& owner, std::string name, Fd table);

  /// Watches the connection and the pidfd. Requests `looks` when the connection or its process ends.
  void watch(EventLoop& loop, Timer& looks, SegmentRetention& retention);

  const OwnerProcess& process() const noexcept { return process_; }
  BrokerClient& broker() noexcept { return broker_; }
  BorrowedBlocks& blocks() noexcept { return blocks_; }

  /// Takes a lease on the block if its generation is still the handle's. Asks the owner if only the owner can tell.
  /// Returns an empty reference for a stale block. Throws timeout if the owner does not answer.
  BlockRef claim(std::uint32_t block, std::uint64_t generation);
  /// Returns whether the connection has been over, and claim() has needed an answer, for longer than a death takes: the
  /// owner lives on without its sockets.
  bool is_out_of_reach() const noexcept;

  /// Asks the owner for the descriptors and vendor bytes that map the segment. Throws peer_died.
  ExportedMemory fetch_memory(const SegmentRequest& wanted);
  /// Asks the owner for several segments, and maps each while the owner works on the next. Skips segments that the
  /// owner refuses, that cannot be mapped, or that need more than one message. `described`: segments whose kind takes
  /// no descriptors. Throws peer_died, timeout.
  void fetch_ahead(std::span<const SegmentRequest> wanted, std::span<const SegmentRequest> described);

  /// Returns the words that the peer's streams write. Throws peer_died.
  ForeignTimeline& timeline();
  /// Logs if streams of this process wait for words that the peer's streams will never write. Returns true while
  /// streams wait. Never waits itself.
  bool poll_waits();

  bool is_gone() const noexcept { return process_.is_gone(); }
  /// Returns whether the owner's program has ended, by exec or with its process. The owner's device may still be at
  /// work.
  bool has_left() const noexcept;
  /// Checks whether the owner is gone, once the connection is over. Returns true if it must be called again soon. Watch
  /// thread.
  bool poll_hangup();
  bool is_closed() const noexcept { return blocks_.is_closed(); }
  /// Closes the descriptors of an owner that is gone, except the descriptors of segments, and freezes the leases. Gives all
  /// memory back if no lease is left. Returns true once all is given back.
  bool try_close() noexcept;
  /// Lets sweeps leave the owner, which lives, once this process holds none of its blocks.
  void leave_when_unused() noexcept;
  /// Closes the leases and tells the owner, if leave_when_unused() was called and no block is held. A later open of the
  /// owner's memory connects again. Returns whether the peer was closed. Watch thread.
  bool try_leave() noexcept;
  /// Gives back all descriptors and memory of an owner that was left. Returns false if it must be called again. Watch thread.
  bool try_finish_leaving() noexcept;
  /// Returns a number that is odd during an attempt to leave, and changes with each.
  std::uint32_t attempts() const noexcept { return attempts_; }
  /// Returns whether the peer may be destroyed once no caller remembers it, which requires that no stream waits for its
  /// words. REQUIRES: try_close() has returned true.
  bool is_destroyable() noexcept;
  /// Closes the descriptor of the process. REQUIRES: the peer is closed.
  void forget_process() noexcept { process_.forget(); }

  // The fork handlers call the following members. prepare_fork() makes a page and a connection for the child and
  // announces the child to the owner.
  void lock() NO_THREAD_SAFETY_ANALYSIS;
  void unlock() NO_THREAD_SAFETY_ANALYSIS;
  void prepare_fork();
  void finish_fork_in_parent() noexcept { fork_page_.reset(); }
  void finish_fork_in_child() noexcept NO_THREAD_SAFETY_ANALYSIS;

 private:
  Peer(const ProcessId& owner, std::string name, UnixSocket socket = {}, int pid = 0,
       ProcessWatch watch = {});
  static std::shared_ptr<Peer> make(Peer* made);
  void prove(const peer::Greeting& greeting);
  ExportedMemory with_rest(ExportedMemory memory, std::uint32_t segment);
  void fetch_described(std::span<const SegmentRequest> wanted);
  void map_answer(const SegmentRequest& wanted, Packet packet) noexcept;
  void map_answers(std::span<const SegmentRequest> wanted, const Packet& packet) noexcept;
  void try_map(const SegmentRequest& wanted, ExportedMemory memory) noexcept;
  void set_table(Fd file);
  bool ask_owner(std::uint32_t block, std::uint64_t generation, std::optional<Error>& silence) noexcept;
  bool wait_until_frozen() noexcept;
  bool uses_devices() noexcept;
  void handle_unsolicited(Packet packet);
  void retain_for_owner(Packet packet);
  bool end();
  void close_descriptors() noexcept;
  bool look_at_words() REQUIRES(timeline_mutex_);

  OwnerProcess process_;
  BorrowedBlocks blocks_{process_};
  BrokerClient broker_;

  mutable Mutex timeline_mutex_;
  std::unique_ptr<ForeignTimeline> timeline_ GUARDED_BY(timeline_mutex_);

  std::optional<SegmentRequest> wanted_;  ///< asked for together with the welcome
  /// The time when a claim first needed an answer after the end of the connection.
  std::atomic<std::chrono::steady_clock::time_point> unanswered_since_{};
  std::atomic<bool> is_leaving_{false};
  std::atomic<std::uint32_t> attempts_{0};
  bool is_end_due_ = false;  ///< the process has ended, and end() was not possible yet
  int first_looks_ = 3;      ///< the number of looks that are left after the end of the connection
  std::chrono::steady_clock::time_point next_look_{};
  EventLoop* loop_ = nullptr;
  Timer* looks_ = nullptr;
  SegmentRetention* retention_ = nullptr;

  std::optional<ForkPage> fork_page_;
};

/// The processes that this process is connected to, or whose memory it holds. Connects to each once, and drops a
/// process that has ended once no lease is left.
///
/// Thread safety: all members may be called concurrently, but for the fork ones.
class Peers {
 public:
  using PeerRef = std::shared_ptr<Peer>;
  using List = std::list<PeerRef>;

  /// Constructs an empty set. `contact` is called when the watch thread has been started for the first connection.
  Peers(EventLoop& loop, SegmentRetention& retention, Wakeup contact);

  /// Returns the peer of a live process. Connects if there is none, and asks for `wanted` while connecting. Throws
  /// peer_died, timeout.
  PeerRef connect(const ProcessId& process, std::optional<SegmentRequest> wanted = {});
  /// Returns the peer of a dead owner. Makes one from what a holder has of the owner, unless there is one already.
  PeerRef freeze(const ProcessId& owner, HeldSegment held, const SegmentRequest& wanted);
  /// Returns the latest peer of that process, which may be closed; null if there never was one.
  PeerRef find(const ProcessId& process) const;
  /// Returns find(), but null for a closed peer.
  PeerRef find_open(const ProcessId& process) const;
  /// Leaves the process, which lives, as soon as no block of it is held here and it retains no item of an open queue.
  void leave(const ProcessId& process);
  /// Lets the next sweep leave processes: a queue was closed.
  void note_closed_queue() noexcept {
    if (has_left_) looks_.request();
  }
  /// Takes a lease without waiting for a process. Returns an empty reference if the owner must be connected to or
  /// asked. The lease keeps the blocks alive.
  std::pair<BorrowedBlocks*, BlockRef> try_claim(const HandleFields& handle) noexcept;
  /// Takes a lease of a dead owner's block. Returns an empty reference for a stale block, and no value if a sweep has
  /// closed the peer. REQUIRES: the peer is gone.
  std::optional<BlockRef> claim_frozen(Peer& peer, const HandleFields& handle);
  /// Returns the words of another process's streams. The first call asks the process. Returns null if the process is
  /// gone and was never asked, because then there is no work to wait for.
  ForeignTimeline* timeline_of(const ProcessId& process);
  /// Returns the words of a process's streams; null if the process would have to be asked.
  ForeignTimeline* known_timeline_of(const ProcessId& process) const;
  /// Returns a segment that a peer or an ancestor's ledger has; empty if none has it. Throws unsupported if one has the
  /// segment and cannot pass it on.
  std::optional<HeldSegment> find_segment(const SegmentKey& segment, Access access) const;

  std::vector<PeerRef> list() const;
  /// Returns how many peers there are, closed ones included.
  std::size_t size() const noexcept;
  /// Drops owners that are gone and of which no lease is left. Returns true while dead owners are left.
  bool sweep() noexcept;

  // The fork handlers call the following members.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  /// Returns the open peers. REQUIRES: locked.
  const List& list_locked() const noexcept REQUIRES(mutex_) { return open_; }
  /// Takes over what the parent had borrowed. REQUIRES: this is a forked child.
  void inherit(Peers& parent) NO_THREAD_SAFETY_ANALYSIS;
  /// Adds the blocks of a parent or ancestor that this process holds through fork.
  void add_inherited(Ledger& ledger) { inherited_.push_back(&ledger); }

 private:
  /// The right of one thread to connect to a process.
  class SingleFlight;
  /// Returns the place of a process among the known peers, which it may share with another.
  std::atomic<Peer*>& known_of(const ProcessId& id) noexcept { return peers_by_first_byte_[id[0]]; }
  PeerRef try_attach(Dial call, const std::optional<SegmentRequest>& wanted);
  PeerRef add(PeerRef peer);
  /// Checks which owners that hung up are gone. Returns true if it must be called again soon. Watch thread.
  bool poll_hangups();
  void forget_ended() noexcept REQUIRES(mutex_);
  void destroy_forgotten() noexcept REQUIRES(mutex_);
  bool try_leave(const PeerRef& peer) noexcept REQUIRES(mutex_);
  bool try_release_closed(const std::string& owner) noexcept REQUIRES(mutex_);

  EventLoop& loop_;
  SegmentRetention& retention_;
  const Wakeup contact_;
  mutable Mutex mutex_;
  Mutex connecting_mutex_;  ///< before mutex_
  Condition connecting_ended_;
  std::set<ProcessId> connecting_
      GUARDED_BY(connecting_mutex_);  ///< processes to which a thread is connecting
  std::map<ProcessId, PeerRef> by_process_ GUARDED_BY(mutex_);
  /// The peers of by_process_ that readers find without a lock, by the first byte of the id; written under mutex_.
  std::array<std::atomic<Peer*>, 256> peers_by_first_byte_{};
  List open_ GUARDED_BY(mutex_);
  List closed_ GUARDED_BY(mutex_);  ///< closed peers, which callers may still reference
  std::map<ProcessId, ForeignTimeline*> timelines_
      GUARDED_BY(mutex_);  ///< the words of peers, some of which may be closed
  std::vector<Ledger*> inherited_;
  std::atomic<bool> has_left_{false};  ///< leave() was called
  Timer looks_{loop_, [this] {
                 const bool again = poll_hangups();
                 return Timer::soon_if(sweep() || again);
               }};
};

}  // namespace onecopy
