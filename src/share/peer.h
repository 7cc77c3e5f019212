// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "onecopy/core/error.h"
#include "onecopy/os/unix_socket.h"
#include "share/call.h"
#include "share/claim_memory.h"
#include "share/deposits.h"
#include "share/fork_page.h"
#include "share/keeper.h"
#include "share/patience.h"
#include "share/segment_places.h"
#include "share/timeline.h"
#include "share/watch.h"
#include "share/wire.h"

namespace onecopy {

/// Tells a process that we have no connection with that the handle with this hold has arrived, without
/// a handshake: whoever knows the hold's number has the handle.
void acknowledge_to(const std::string& name, std::uint64_t hold) noexcept;

/// Another process as its borrower sees it: a connection to its broker, its block table, our claim
/// page with it, and its segments that are mapped here.
///
/// Peers are never destroyed, so that references and caches may point at them; close() gives back
/// what a peer of a dead owner holds once no lease is left.
///
/// Life of the owner: alive -> disconnected (its socket closed: look) -> gone (its pidfd says so). Of
/// an owner that is gone nothing is reused any more: its segments are frozen.
///
/// Thread safety: all members may be called concurrently, but for the fork ones.
class Peer final : public SharedKeeper {
 public:
  struct Wanted {
    std::uint32_t segment;
    Access access;
    std::int32_t number = 0;  ///< Backend::borrower_number() of the segment's kind
  };
  /// The first half of a connection: proves to the process that was called who we are, and asks for what is wanted.
  /// Throws peer_died, other_user, bad_secret, timeout...
  static std::unique_ptr<Peer> introduce(Call call, const std::string& my_name,
                                         std::optional<Wanted> wanted = {});
  /// The second half: attaches, and maps what was wanted. Between the two there is time for something else. Throws
  /// the same; nothing but the end is left for a Peer then.
  void await_welcome();
  /// An owner that is gone, as a holder of its block table described it.
  static std::unique_ptr<Peer> frozen(const ProcessId& owner, Fd table);

  /// Puts the connection and the pidfd under watch.
  void watch(Watch& watch, Deposits& deposits);

  /// A lease on the block if it still is what the handle said; empty when it is stale, or when only
  /// the owner can tell. Never waits.
  BlockRef try_claim(std::uint32_t block, std::uint64_t generation) noexcept;
  /// The same, and asks the owner when it has to; empty when it is stale. Throws timeout when it does not answer.
  BlockRef claim(std::uint32_t block, std::uint64_t generation);
  struct Said {  ///< what the handle says
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
  /// Empty while the block's segment is not mapped. Throws bad_handle when the handle contradicts the
  /// owner's table.
  Location locate(const Said& handle, Access access);
  bool has_segment(std::uint32_t segment, Access access) const;
  /// Asks the owner for the segment and maps it. Throws peer_died.
  void fetch_segment(const Wanted& wanted);
  /// Asks the owner for what it takes to map the segment. Throws peer_died.
  ExportedMemory fetch_memory(const Wanted& wanted);
  /// Maps a segment that somebody else handed over. REQUIRES: nobody can close this peer meanwhile, because
  /// the caller holds a block of it or nobody else knows it yet; a closed one would keep the memory for ever.
  void map_segment(std::uint32_t segment, Access access, ExportedMemory memory);

  struct Foreign {
    Fd table;
    ExportedMemory memory;
    bool owner_gone = false;
  };
  /// Asks this process for a segment of another owner that it holds.
  Foreign fetch_foreign(const std::string& owner_name, const Wanted& wanted);
  /// Hands a segment over for safe keeping.
  void deposit(const DepositKey& key, const ProcessOrigin& origin, const Fd& table,
               const ExportedMemory& memory, std::uint64_t channel);
  /// What was handed over is gone. Never waits. False when it could not be told.
  bool withdraw(const DepositKey& key) noexcept;
  /// The words that this process's streams write. Throws peer_died.
  ForeignTimeline& timeline();
  /// Afterwards we have what is in that queue now, should its creator die.
  void join_channel(std::uint64_t channel, std::uint8_t role);
  void leave_channel(std::uint64_t channel, std::uint8_t role) noexcept;
  /// Tells the maker of a handle that it has arrived. Never waits. False when it could not be told
  /// over this connection.
  bool acknowledge(std::uint64_t hold) noexcept;

  void retain(std::uint32_t block) noexcept override;
  void release(std::uint32_t block) noexcept override;
  const ProcessId& owner() const noexcept override { return owner_; }
  const std::string& name() const noexcept { return name_; }
  void begin_transit(std::uint32_t block, std::uint64_t channel) noexcept override {
    transits_.begin(block, channel);
  }
  void end_transit(std::uint32_t block) noexcept override { transits_.end(block); }
  BlockPlace export_block(std::uint32_t block, Access access) override;
  std::span<std::byte> bytes_of(std::uint32_t block, Access access) override;
  ExportedMemory export_segment(std::uint32_t segment, Access access) const override;
  Fd export_table() const override;
  std::byte* allow(std::uint32_t block, Access access, int ordinal) override;

  bool is_gone() const noexcept { return gone_; }
  /// The same, asked of the kernel and not of the watch thread.
  bool has_ended() const noexcept;
  bool is_disconnected() const noexcept { return disconnected_; }
  bool is_closed() const noexcept { return closed_; }
  ProcessOrigin origin() const override;
  std::uint64_t leases() const noexcept;
  std::size_t segments() const;
  /// Gives memory and descriptors back if the owner is gone and nothing is held. True when closed.
  bool try_close() noexcept;

  // Around a fork. Before: a page and a connection for the child, announced to the owner.
  void lock_for_fork();
  void unlock_after_fork();
  void prepare_fork();
  void finish_fork_in_parent() noexcept;
  void finish_fork_in_child() noexcept;

 private:
  struct Mapped {
    std::unique_ptr<DeviceMemory> memory;
    const DeviceIdentity* identity = nullptr;
  };
  using Segments = std::vector<Mapped>;

  explicit Peer(const ProcessId& owner);
  void prove(const wire::Nonce& mine, const std::string& my_name);
  void hear_welcome();
  template <class F>
  void or_say_silent(F&& f);
  void set_table(Fd file);
  void set_page(Mapping page);
  template <class Ask>
  BlockRef claim(std::uint32_t block, std::uint64_t generation, Ask&& ask) noexcept;
  bool ask_owner(std::uint32_t block, std::uint64_t generation, std::optional<Error>& silence) noexcept;
  bool wait_gone() const noexcept;
  bool is_leased() const noexcept;
  Packet request(Bytes message, std::span<const int> fds, wire::Type answer);
  Packet receive_answer();
  Packet receive_soon();
  void rearm();
  void on_readable();
  void read_unasked();
  void handle_unasked(Packet packet);
  void check_gone();
  void report_weak_segments() const;
  void retire(std::uint32_t segment) noexcept;
  template <class Body>
  bool tell(wire::Type type, const Body& body) noexcept;
  const Record& record(std::uint32_t block) const noexcept { return records_[block]; }
  const Mapped* find_segment(std::uint32_t segment, Access access) const noexcept;
  /// False while it is not mapped. REQUIRES: the caller holds a block of it.
  bool find_place(std::uint32_t segment, Access access, SegmentPlace& place);
  /// Where it is mapped for `access`, or else in the other way.
  SegmentPlace place_of(std::uint32_t segment, Access access);

  ProcessId owner_;
  std::string name_;
  int pid_ = 0;
  mutable std::atomic<std::uint64_t> start_time_{0};  ///< 0: not known yet
  Fd pidfd_;
  Fd table_file_;
  Mapping table_;
  const Record* records_ = nullptr;
  Mapping page_memory_;
  Claims page_;
  Transits transits_;
  Mapping count_memory_;
  std::atomic<std::uint32_t>* counts_ = nullptr;  ///< leases by block, in private memory: for fork
  std::atomic<std::uint32_t> highest_block_{0};
  std::atomic<bool> disconnected_{false};
  std::atomic<bool> gone_{false};
  std::atomic<bool> closed_{false};

  mutable std::mutex segments_mutex_;
  SegmentPlaces places_;              ///< of some of them; written under segments_mutex_
  std::array<Segments, 2> segments_;  ///< by Access, by number

  mutable std::mutex ending_mutex_;  ///< while a descriptor is used without a lock of its own, or let go of
  std::mutex timeline_mutex_;
  std::unique_ptr<ForeignTimeline> timeline_;

  std::mutex socket_mutex_;  ///< held by whoever reads the socket
  UnixSocket socket_;
  std::optional<Wanted> wanted_;   ///< with the welcome
  std::uint32_t last_serial_ = 0;  ///< of the last question, whose answer is awaited
  Watch* watch_ = nullptr;
  Deposits* deposits_ = nullptr;

  std::optional<ForkPage> fork_page_;
};

}  // namespace onecopy
