// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/janitor.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/deadline.h"
#include "os/event_loop.h"
#include "os/fork_hook.h"
#include "os/mutex.h"
#include "share/borrower/importer.h"
#include "share/borrower/segment_retention.h"
#include "share/broker/broker.h"
#include "share/owner/adopted_allocations.h"
#include "share/owner/holds.h"
#include "share/owner/ledger.h"
#include "share/owner/pools.h"
#include "share/runtime/lent_segments.h"
#include "share/runtime/pinning.h"
#include "share/session.h"

namespace onecopy {

/// The parts of onecopy in this process, put together. Only the implementation of the API includes it; other layers see
/// a Session. Made at first use and never destroyed: tensors with static lifetime may outlive everything else.
///
/// A forked child gets a Runtime of its own at once, or at its next use if it lacks descriptors. In it, references to
/// the parent's blocks are leases on the parent, as of any other owner. Thread safety: all members may be called
/// concurrently.
class Runtime final {
 public:
  /// Returns the Runtime of this process. Throws as Session::current() does.
  static Runtime& current() { return Session::current().runtime_; }
  static Runtime* existing() noexcept {
    Session* const session = Session::existing();
    return session ? &session->runtime_ : nullptr;
  }

  const ProcessId& id() const noexcept { return id_; }
  const std::string& name() const noexcept { return name_; }
  Ledger& ledger() noexcept { return ledger_; }
  Peers& peers() noexcept { return peers_; }
  SegmentSource& segment_source() noexcept { return source_; }
  Importer& importer() noexcept { return importer_; }
  StreamOrder& streams() noexcept { return streams_; }
  Broker& broker() noexcept { return broker_; }
  PinnedObjects& objects() noexcept { return objects_; }
  Pinning& pinning() noexcept { return pinning_; }

  /// Allocates a block of exactly `bytes` in the pool of the current strategy.
  std::pair<BlockRef, std::byte*> allocate(std::uint64_t bytes, Device device);
  /// Adopts shared memory that was made by other means as one segment with one block. Returns a row of its `size` bytes
  /// from `offset` on, which can be shared like any tensor. `committed` bytes are counted in Stats::bytes_shared.
  Tensor adopt(std::unique_ptr<DeviceMemory> memory, std::uint64_t size, std::uint64_t committed = 0,
               std::uint64_t offset = 0);
  /// Adopts memory of a device that another library allocated, see onecopy::adopt().
  Tensor adopt(const TensorView& view, std::shared_ptr<const void> owner) {
    return allocations_.adopt(view, std::move(owner));
  }

  /// Names the tensor as share() does, for callers that keep the block in another way.
  HandleFields name_in_handle(const Tensor& tensor, std::uint32_t flags = 0);
  /// Names the tensor in a handle whose point comes after all work in the stream; for pinned memory of the host, after
  /// all work that may be filling it.
  HandleFields name_in_order(const Tensor& tensor, Stream stream);
  /// Returns a point after the work that may be filling memory of the host, in the current streams or `stream`; empty
  /// if there is none.
  TimelinePoint mark_filling(const Tensor& tensor, Stream stream);
  Handle hold(const Handle& handle);
  Tensor open(const HandleFields& handle, const OpenOptions& options);
  /// Describes the memory beyond the tensor that its handle lets others access; empty if there is none.
  std::string exposes(const Tensor& tensor) const;

  Stats stats() const;
  OwnerInfo describe() const;
  /// Gives unused memory back to the system, of one device or of all. Returns how many bytes the pools gave back.
  std::uint64_t give_back(std::optional<Device> device);

 private:
  friend class Session;

  /// The blocks of an ancestor of this process, which forks have passed on.
  struct InheritedOwner {
    Runtime* owner = nullptr;  // the copy of its Runtime in this process; never destroyed
    Mapping page;
    UnixSocket socket;              // the parent's socket, if there was no page for this process
    std::optional<ForkPage> child;  // set during a fork
    bool is_counted_with_parent = false;
  };

  Runtime();
  explicit Runtime(const ProcessId& id);
  static Runtime& make();
  void clean_up();
  Timer::Pause expire_holds();
  Timer::Pause sweep_adopted();
  Timer::Pause trim();

  // runtime.cpp
  Extent allocate_from(Pool& pool, std::uint64_t bytes, Device device);
  void end_idle_releases();
  Extent allocate_in_time(Pool& pool, std::uint64_t bytes, Device device);
  bool await_release(Deadline deadline);

  // api/share.cpp
  /// Opens on the device `user`, see Importer::open(), and counts and logs the tensor.
  Tensor open_for(const HandleFields& handle, Access access, std::optional<Device> user,
                  std::span<const ProcessId> holders);

  // api/stats.cpp
  std::vector<TransitInfo> transits() const;
  std::vector<DeviceUse> devices() const;

  static void at_exit() noexcept;

  // fork.cpp
  static const ForkHook kForkHook;
  // The system calls these functions before and after a fork, and the analysis cannot follow locks from one to another.
  static void prepare_fork() NO_THREAD_SAFETY_ANALYSIS;
  static void finish_in_parent() NO_THREAD_SAFETY_ANALYSIS;
  static void finish_in_child() NO_THREAD_SAFETY_ANALYSIS;
  void become_child() NO_THREAD_SAFETY_ANALYSIS;
  struct PartLocks;
  void lock_all();
  void unlock_all();
  void abandon() noexcept;
  static void claim_inherited(InheritedOwner& from) noexcept;
  void inherit(Runtime& parent);
  void watch_inherited(InheritedOwner& from);

  inline static Mutex making_;
  // The parent's Runtime in a forked child, until the child's own is made.
  inline static Runtime* forked_from_ = nullptr;
  inline static std::list<InheritedOwner> inheritance_;

  const ProcessId id_;
  /// The parent's Runtime in a forked child; never destroyed, which leak checkers accept because it is referenced here.
  Runtime* parent_ = nullptr;
  const std::string name_;
  SegmentTable segments_;
  LentSegments lent_{segments_};
  Pools pools_;
  PinnedObjects objects_;  // declared before ledger_, whose blocks keep the objects
  Ledger ledger_;
  AdoptedAllocations allocations_;
  EventLoop loop_;
  SegmentRetention retention_;
  StreamOrder streams_;
  Pinning pinning_;
  Holds holds_;
  FormerMemory former_{loop_};
  Peers peers_;
  SegmentSource source_;
  Importer importer_;
  Broker broker_;
  OpenQueues queues_;
  GroupReports groups_;
  ArenaReports arenas_;
  Timer limbo_{loop_, [this] { return Timer::soon_if(ledger_.drain()); }};
  Timer retiring_{loop_, [this] { return Timer::soon_if(segments_.tell_retired()); }};
  Timer sweeping_{loop_, [this] { return Timer::soon_if(retention_.segments.sweep()); }};
  Timer holding_{loop_, [this] { return expire_holds(); }};
  Timer adopted_idle_{loop_, [this] { return sweep_adopted(); }};
  Timer trimming_{loop_, [this] { return trim(); }};
  Timer files_{loop_, [] { return Timer::soon_if(remove_released_files()); }};
  Timer cleaning_{loop_, [this] { return clean_up(), Timer::Pause(); }};
  Session session_{*this};
  std::atomic<std::uint64_t> shared_total_{0};
  std::atomic<std::uint64_t> opened_total_{0};

  bool cleaned_up_ = false;  ///< see clean_up(); used by the watch thread once the Runtime is made
  std::list<InheritedOwner> inherited_;
  std::optional<ForkPage> child_;  ///< the child's claims on our blocks; set during a fork
  /// The place for `child_` in the child's list, made while allocating may still fail.
  std::list<InheritedOwner> child_place_;
};

}  // namespace onecopy
