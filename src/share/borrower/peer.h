// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "device/order/timeline.h"
#include "onecopy/core/error.h"
#include "os/deadline_scope.h"
#include "os/event_loop.h"
#include "os/mutex.h"
#include "os/unix_socket.h"
#include "share/borrower/broker_client.h"
#include "share/borrower/dial.h"
#include "share/borrower/foreign_segments.h"
#include "share/borrower/held_segment.h"
#include "share/borrower/leases.h"
#include "share/borrower/segment_retention.h"
#include "share/format/wire.h"
#include "share/owner/fork_page.h"
#include "share/owner/shared_blocks.h"

namespace onecopy {

/// Another process as its borrower sees it: a conversation with its broker, our leases of its blocks, and its
/// segments that are mapped here.
///
/// If the owner is dead and no lease is left, try_close() gives back the peer's memory and descriptors. The peer
/// itself goes with the last std::shared_ptr to it. Callers that remember a peer have such a pointer; blocks need
/// none, since they are leases.
///
/// Life of the owner: alive -> disconnected (the conversation is over: look) -> gone. It is gone if its pidfd says
/// so. If it has no memory of a device here, it is also gone once its process has become another program. A dead
/// owner reuses nothing: its segments are frozen.
///
/// Thread safety: all members may be called concurrently, but for the fork ones.
class Peer final : public SharedBlocks, public std::enable_shared_from_this<Peer> {
 public:
  struct SegmentRequest {
    std::uint32_t segment;
    Access access;
    std::int32_t number = 0;       ///< Backend::borrower_number() of the segment's kind
    std::optional<Device> user{};  ///< the device of this process that uses it; none: the memory's own
  };
  /// The first half of a connection: proves our identity to the called process, and asks for `wanted`. Throws
  /// peer_died, other_user, bad_secret, timeout...
  static std::shared_ptr<Peer> begin_handshake(Dial call, const std::string& my_name,
                                               std::optional<SegmentRequest> wanted = {});
  /// The second half: attaches, and maps the wanted segment. Other work may be done between the two halves. Throws as
  /// begin_handshake(). REQUIRES: after a throw the Peer is only destroyed.
  void finish_handshake();
  /// An owner that is gone, as a holder of its block table described it.
  static std::shared_ptr<Peer> frozen(const ProcessId& owner, Fd table);

  /// Puts the connection and the pidfd under watch. The Importer `looks` when the connection or its process ends.
  void watch(EventLoop& loop, Timer& looks, SegmentRetention& retention);

  /// A lease on the block if its generation is still the handle's. Empty if it is stale, or if only the owner can
  /// tell. Never waits.
  BlockRef try_claim(std::uint32_t block, std::uint64_t generation) noexcept;
  /// As try_claim(), but asks the owner if needed. Empty if the block is stale. Throws timeout if the owner does not
  /// answer.
  BlockRef claim(std::uint32_t block, std::uint64_t generation);
  /// Is the conversation over, did claim() need an answer, and is that longer ago than a death takes? Then the owner
  /// lives on without its sockets.
  bool is_out_of_reach() const noexcept;
  struct ClaimRequest {  ///< from the handle
    std::uint32_t block;
    std::uint32_t segment;
    std::uint64_t segment_size;
    std::uint64_t storage_size;
    SegmentKind kind;
  };
  /// Where a claimed block lies in this process.
  struct Location {
    std::byte* data = nullptr;
    const DeviceIdentity* identity = nullptr;
    explicit operator bool() const noexcept { return data != nullptr; }
  };
  /// For the device `user` of this process, or else for the memory's own. Empty while the block's segment is not
  /// mapped. Throws bad_handle if the handle contradicts the owner's table, unsupported if `user` has no way to the
  /// memory.
  Location locate(const ClaimRequest& handle, Access access, std::optional<Device> user = {});
  bool has_segment(std::uint32_t segment, Access access) const {
    return segments_.contains(segment, access);
  }
  /// Asks the owner for the segment and maps it. Throws peer_died.
  void fetch_segment(const SegmentRequest& wanted);
  /// Asks the owner for several segments, and maps each while the owner works on the next. Leaves out segments that
  /// the owner refuses, that cannot be mapped, or that take more than one message. Throws peer_died, timeout.
  void fetch_ahead(std::span<const SegmentRequest> wanted);
  /// fetch_ahead() of segments whose kind takes no descriptors.
  void fetch_described(std::span<const SegmentRequest> wanted);
  /// Asks the owner for the descriptors and vendor bytes that map the segment. Throws peer_died.
  ExportedMemory fetch_memory(const SegmentRequest& wanted);
  /// Maps a segment that another holder handed over. REQUIRES: no thread can close this peer meanwhile, because the
  /// caller holds a block of it or is the only one to know it. A closed peer would keep the memory for ever.
  void map_segment(const SegmentRequest& wanted, ExportedMemory memory);

  /// Asks this process for a segment of another owner that it holds.
  HeldSegment fetch_foreign(const std::string& owner_name, const SegmentRequest& wanted);
  /// Hands a segment over, to be retained for items in `queue`. Throws timeout, while is_silent() at once; the process
  /// may still retain the segment once it goes on.
  void retain(const SegmentKey& key, const ProcessOrigin& origin, const Fd& table,
              const ExportedMemory& memory, std::uint64_t queue, std::uint64_t number);
  /// Says that the owner has given the retained segment back. Never waits. Returns false if the process could not be
  /// told.
  bool forget(const SegmentKey& key) noexcept;
  /// Ends our requests up to this number. Never waits. Returns false if the process could not be told.
  bool release(const SegmentKey& key, std::uint64_t number) noexcept;
  /// The words that this process's streams write. Throws peer_died.
  ForeignTimeline& timeline();
  /// Logs it if streams of ours wait for words that its streams will never write. Returns true while some wait. Never
  /// waits.
  bool poll_waits();
  /// Afterwards we have every segment that is in that queue now, should its creator die.
  void join_queue(std::uint64_t queue);
  /// Returns false if the creator does not read, or is gone.
  bool leave_queue(std::uint64_t queue) noexcept;
  /// Tells the maker of a handle that it has arrived. Never waits. Returns false if it could not be told over this
  /// connection.
  bool acknowledge(std::uint64_t hold) noexcept;

  void retain(std::uint32_t block) noexcept override { leases_.retain(block); }
  void release(std::uint32_t block) noexcept override;
  void release_now(std::uint32_t block) noexcept override;
  std::uint32_t segment_of(std::uint32_t block) const noexcept override {
    return leases_.record(block).segment;
  }
  std::shared_ptr<DeviceMemory> segment_memory(std::uint32_t segment, Access access) const override {
    return segments_.memory(segment, access);
  }
  void begin_pin(std::uint32_t segment) override;
  void end_pin(std::uint32_t segment) noexcept override { leases_.end_pin(segment); }
  bool holds(std::uint32_t block) const noexcept override { return leases_.has(block); }
  bool uses(std::uint32_t segment, std::uint64_t offset, std::uint64_t bytes,
            const std::set<std::uint32_t>& others) const noexcept override {
    return leases_.any_in(segment, offset, bytes, others);
  }
  std::shared_ptr<const void> keep_alive() const override { return shared_from_this(); }
  const ProcessId& owner() const noexcept override { return owner_; }
  const std::string& name() const noexcept { return name_; }
  void begin_transit(std::uint32_t block, std::uint64_t channel) noexcept override {
    leases_.transits().begin(block, channel);
  }
  void end_transit(std::uint32_t block) noexcept override { leases_.transits().end(block); }
  ExportedBlock export_block(std::uint32_t block, Access access) override;
  std::span<std::byte> bytes_of(std::uint32_t block, Access access) override;
  ExportedMemory export_segment(std::uint32_t segment, Access access) const override {
    return segments_.export_memory(segment, access);
  }
  Fd export_table() const override;
  std::byte* allow(std::uint32_t block, Access access, int ordinal) override;

  bool is_gone() const noexcept { return gone_; }
  /// Has its process ended? Asks the kernel and not the watch thread.
  bool has_ended() const noexcept;
  /// Has its program ended? It also ends when the process becomes another by exec. Its device may still be at work.
  bool has_left() const noexcept;
  /// Once the conversation is over: looks whether the owner is gone. Returns true while it has to be called again
  /// soon. Watch thread.
  bool poll_hangup();
  bool is_disconnected() const noexcept { return client_.is_over(); }
  const std::atomic<bool>& connection_end() const noexcept { return client_.end(); }
  /// Has it let a question wait too long, and said nothing since?
  bool is_silent() const noexcept { return client_.is_silent(); }
  bool is_closed() const noexcept { return leases_.is_closed(); }
  ProcessOrigin origin() const override;
  std::uint64_t leases() const noexcept { return leases_.count(); }
  std::vector<LeaseInfo> lease_list() const { return leases_.list(); }
  std::size_t segments() const { return segments_.count(); }
  /// Gives memory and descriptors back if the owner is gone and has no lease here. Returns true when all is given
  /// back: then not again.
  bool try_close() noexcept;
  /// May it be destroyed once no caller remembers it? Not if streams may wait for its words. REQUIRES: try_close()
  /// has given all back.
  bool can_go() noexcept;
  /// Gives the process's descriptor back. REQUIRES: it is closed.
  void forget_process() noexcept;

  // Around a fork. Before: a page and a connection for the child, announced to the owner.
  void lock() NO_THREAD_SAFETY_ANALYSIS;
  void unlock() NO_THREAD_SAFETY_ANALYSIS;
  void prepare_fork();
  void finish_fork_in_parent() noexcept;
  void finish_fork_in_child() noexcept NO_THREAD_SAFETY_ANALYSIS;

 private:
  explicit Peer(const ProcessId& owner, UnixSocket socket = {}, int pid = 0);
  void prove(const wire::Nonce& mine, const std::string& my_name);
  ExportedMemory with_rest(ExportedMemory memory, std::uint32_t segment);
  void map_answer(const SegmentRequest& wanted, Packet packet) noexcept;
  void map_answers(std::span<const SegmentRequest> wanted, const Packet& packet) noexcept;
  void try_map(const SegmentRequest& wanted, ExportedMemory memory) noexcept;
  void set_table(Fd file);
  bool ask_owner(std::uint32_t block, std::uint64_t generation, std::optional<Error>& silence) noexcept;
  bool wait_gone() const noexcept;
  bool is_frozen() const noexcept;
  bool uses_devices() const noexcept;
  void take_news(Packet packet);
  void retain_its(Packet packet);
  bool end();
  bool look_at_words() REQUIRES(timeline_mutex_);
  void report_weak_segments() const;

  const ProcessId owner_;
  const std::string name_;
  const int pid_;
  mutable std::atomic<std::uint64_t> start_time_{0};  ///< 0: not known yet
  Fd pidfd_;
  Fd table_file_;
  std::uint64_t table_inode_ = 0;
  std::atomic<bool> gone_{false};
  /// The time when a claim first needed an answer after the end of the conversation.
  std::atomic<std::chrono::steady_clock::time_point> unanswered_since_{};
  Leases leases_;
  ForeignSegments segments_;

  mutable Mutex ending_mutex_;  ///< while a descriptor is used without a lock of its own, or let go of
  mutable Mutex timeline_mutex_;
  std::unique_ptr<ForeignTimeline> timeline_ GUARDED_BY(timeline_mutex_);

  BrokerClient client_;
  std::optional<SegmentRequest> wanted_;  ///< with the welcome
  int first_looks_ = 3;                   ///< that are left, once the conversation is over
  std::chrono::steady_clock::time_point next_look_{};
  EventLoop* loop_ = nullptr;
  Timer* looks_ = nullptr;
  SegmentRetention* retention_ = nullptr;

  std::optional<ForkPage> fork_page_;
};

}  // namespace onecopy
