// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/order/timeline.h"
#include "device/order/used_devices.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/errand.h"
#include "os/process.h"
#include "os/watch.h"
#include "share/borrower/deposits.h"
#include "share/borrower/importer.h"
#include "share/borrower/value_points.h"
#include "share/broker/broker.h"
#include "share/owner/adoptions.h"
#include "share/owner/holds.h"
#include "share/owner/ledger.h"
#include "share/owner/ordered_releases.h"
#include "share/owner/owner_keeper.h"
#include "share/owner/pinned_objects.h"
#include "share/owner/pools.h"

namespace onecopy {

/// Everything this process has of onecopy, put together. Made at first use and never destroyed:
/// tensors with static lifetime may outlive everything else.
///
/// A forked child gets a Process of its own at once; what the parent's held for it becomes leases.
/// Thread safety: all members may be called concurrently.
class Process {
 public:
  /// Throws unsupported in a process made by a raw clone(2), which ran none of our fork handlers.
  static Process& current() {
    Process* const process = existing();
    return process && !is_raw_clone() ? *process : make_current();
  }
  /// None when this process has not used onecopy yet.
  static Process* existing() noexcept { return current_.load(std::memory_order_acquire); }

  const ProcessId& id() const noexcept { return id_; }
  const std::string& name() const noexcept { return name_; }
  Ledger& ledger() noexcept { return ledger_; }
  Importer& importer() noexcept { return importer_; }
  Broker& broker() noexcept { return broker_; }
  Holds& holds() noexcept { return holds_; }
  PinnedObjects& objects() noexcept { return objects_; }
  Watch& watch() noexcept { return watch_; }
  SegmentTable& segments() noexcept { return segments_; }

  /// A block of exactly `bytes` in the pool of the current strategy.
  std::pair<BlockRef, std::byte*> allocate(std::uint64_t bytes, Device device);
  /// Shared memory made by other means as one segment and one block of ours: a row of the `size` bytes from
  /// `offset` on that can be shared like any tensor. `committed` bytes are counted as ours.
  Tensor adopt(std::unique_ptr<DeviceMemory> memory, std::uint64_t size, std::uint64_t committed = 0,
               std::uint64_t offset = 0);
  /// Memory of a device that somebody else allocated, see onecopy::adopt().
  Tensor adopt(const TensorView& view, std::shared_ptr<const void> owner) {
    return adoptions_.adopt(view, std::move(owner));
  }
  /// The descriptor behind a tensor's segment.
  static Fd segment_file(const Tensor& tensor);

  Handle share(const Tensor& tensor, std::uint32_t flags = 0);
  /// The same for who keeps the block in another way.
  HandleFields name_in_handle(const Tensor& tensor, std::uint32_t flags = 0);
  Handle hold(const Handle& handle);
  Tensor open(const HandleFields& handle, Access access) { return open_for(handle, access, {}); }
  /// The same for another device, or ordered in a stream; see onecopy::open().
  Tensor open(const HandleFields& handle, const OpenOptions& options);
  /// Maps the segments that rows of a bundle lie in, as far as the owner of its table has them.
  void fetch_ahead(const ProcessId& owner, std::span<const BundleOrigin> origins,
                   const OpenOptions& options) {
    importer_.fetch_ahead(owner, origins, options.access, options.device);
  }
  /// What others can see through the tensor's handle beyond it, in words; empty when that is nothing.
  std::string exposes(const Tensor& tensor) const;

  // What is ordered in streams.
  /// See onecopy::share().
  Handle share(const Tensor& tensor, Stream stream);
  Tensor order_release(const Tensor& tensor, Stream stream);
  /// A point after all that is in the stream now, for others to wait for.
  TimelinePoint mark(Device device, Stream stream) { return timeline_.mark(device, stream); }
  /// Waits until what was handed over is written, ten seconds at most: what a process that ends has not written
  /// by then is lost.
  static void settle_streams() noexcept;
  /// Makes a stream wait for a point in one of `maker`'s, unless it has passed.
  void wait_for(const ProcessId& maker, const TimelinePoint& point, Device device, Stream stream);
  /// Afterwards wait_for() asks nobody, and is quick. Throws what connecting throws.
  void prepare_wait(const ProcessId& maker, Device device);
  enum class Reached : std::uint8_t { yes, no, unknown };  ///< unknown: the maker would have to be asked
  Reached has_passed(const ProcessId& maker, const TimelinePoint& point) const;
  /// Might wait_for() keep the host waiting? REQUIRES: has_passed() knows the maker.
  bool may_wait_on_host(const ProcessId& maker, Device device) const;

  /// This process shares or opens memory there, in that stream: at first the stream waits for all that values which the
  /// process has got came after.
  void note_use(Device device, Stream stream = {});
  const UsedDevices& used_devices() const noexcept { return used_devices_; }
  /// Of a value that was got: devices that are used later come after it.
  void remember_point(const ProcessId& putter, const TimelinePoint& point);
  /// Like wait_for(), for what no stream can wait for. Asks nobody: without effect while the putter is not known.
  void wait_on_host_for(const ProcessId& putter, const TimelinePoint& point);

  // What queues need. `channel` is random and the same in every process.
  /// This process opens or closes a queue that `creator` made. Throws timeout when the creator cannot be told, and
  /// peer_died.
  void open_channel(const ProcessId& creator, std::uint64_t channel, std::uint8_t role, ChannelHooks hooks);
  void close_channel(const ProcessId& creator, std::uint64_t channel, std::uint8_t role) noexcept;
  /// Before the first item of this segment is put: lets the queue's creator keep it, or, if that is
  /// us, whoever else has the queue open.
  void deposit(const BlockRef& block, const ProcessId& creator, std::uint64_t channel);
  /// Would asking this process now lead to no answer? As far as is known.
  bool is_silent(const ProcessId& process) const;
  /// Something that keeps blocks in transit, for stats and `onecopy ls`; and how many segments it put where
  /// nobody keeps them.
  struct TransitSource {
    std::function<TransitInfo()> info;
    std::function<std::uint64_t()> unkept;
  };
  std::uint64_t add_transit(TransitSource source);
  void remove_transit(std::uint64_t id) noexcept;

  Stats stats() const;
  OwnerInfo describe() const;
  void collect();
  /// The same, of one device's pools or of all; returns how many bytes the pools gave back.
  std::uint64_t give_back(std::optional<Device> device);

  std::atomic<std::uint64_t> shared_total{0};
  std::atomic<std::uint64_t> opened_total{0};

 private:
  /// The blocks of a process that forked us, or forked the one that did.
  struct Inherited {
    Process* owner = nullptr;  // its copy in this process; never destroyed
    Mapping page;
    UnixSocket socket;              // the parent's, when there was no page for us
    std::optional<ForkPage> child;  // during a fork
    bool is_counted_with_parent = false;
  };

  Process();
  void clean_up();
  Watch::Again tick();
  bool trim();

  // process_allocate.cpp
  Extent allocate_from(Pool& pool, std::uint64_t bytes, Device device);
  bool await_release(std::chrono::steady_clock::time_point deadline);

  // process_channels.cpp
  bool tell_of_retired();
  bool tell_of_let_go();
  bool tell_of_left_channels() noexcept;

  // process_share.cpp
  /// On the device `user`, see Importer::open().
  Tensor open_for(const HandleFields& handle, Access access, std::optional<Device> user);

  // process_report.cpp
  std::vector<TransitInfo> transits() const;
  std::uint64_t unkept() const;
  std::vector<DeviceUse> devices() const;

  // process_streams.cpp
  Watch::Again look_after_streams();
  bool look_after_waits();

  /// Adopted segments leave the table when their block is free.
  class Adopted final : public ExtentOwner {
   public:
    explicit Adopted(SegmentTable& segments) : segments_(segments) {}
    void free(const Extent& extent) noexcept override;

   private:
    SegmentTable& segments_;
  };

  static Process& make_current();
  static void at_exit() noexcept;

  // fork.cpp
  static int forks_unhandled_;  ///< the error, from before main()
  static bool is_raw_clone() noexcept { return current_pid() != handled_pid_; }
  static void prepare_fork();
  static void finish_in_parent();
  static void finish_in_child();
  void become_child();
  void lock_all();
  void unlock_all();
  void abandon() noexcept;
  static void claim_inherited(Inherited& from) noexcept;
  void inherit(Process& parent);
  void watch_inherited(Inherited& from);

  inline static std::atomic<Process*> current_{nullptr};
  /// Another than ours in a child whose making our fork handlers have not seen.
  inline static int handled_pid_ = 0;
  inline static std::mutex making_;
  // In a forked child, until its own Process is made:
  inline static Process* forked_from_ = nullptr;
  inline static std::list<Inherited> inheritance_;

  Process* parent_ = nullptr;  ///< in a forked child; never destroyed, and so seen by leak checkers
  const ProcessId id_;
  const std::string name_;
  SegmentTable segments_;
  Adopted adopted_;
  Pools pools_;
  PinnedObjects objects_;  // before ledger_, whose blocks keep them
  Ledger ledger_;
  Adoptions adoptions_;
  Watch watch_;
  Deposits deposits_;
  Timeline timeline_;
  UsedDevices used_devices_;
  ValuePoints value_points_;
  OrderedReleases releases_;
  Errand marking_{"onecopy-marks",
                  [this] { releases_.mark_left(); }};  ///< which may wait for room in a stream
  Holds holds_;
  Importer importer_;
  Broker broker_;

  /// Of a creator that did not read when this process left its queue.
  struct LeftChannel {
    ProcessId creator;
    std::uint64_t channel;
    std::uint8_t role;
    bool operator==(const LeftChannel&) const = default;
  };
  std::mutex left_channels_mutex_;
  std::vector<LeftChannel> left_channels_;

  mutable std::mutex transits_mutex_;
  std::map<std::uint64_t, TransitSource> transits_;
  std::uint64_t last_transit_ = 0;

  bool cleaned_up_ = false;  ///< see clean_up(); of the watch thread, once the Process is made
  std::list<Inherited> inherited_;
  std::optional<ForkPage> child_;  ///< during a fork: what the child will hold of our blocks
  std::list<Inherited>
      child_place_;  ///< and, made while that may fail, the place for it in the child's list
};

}  // namespace onecopy
