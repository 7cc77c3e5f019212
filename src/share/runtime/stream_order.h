// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "device/order/timeline.h"
#include "device/order/used_devices.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/handle_fields.h"
#include "os/event_loop.h"
#include "os/mutex.h"
#include "os/worker.h"
#include "share/owner/stream_releases.h"

namespace onecopy {

/// The points that other processes' streams had reached when they put values that this process has got. Work on a
/// device that this process begins to use later runs after these points, too. Points that have passed are forgotten.
///
/// Thread safety: all members may be called concurrently.
class ValuePoints {
 public:
  struct Entry {
    ProcessId putter;
    TimelinePoint point;
  };

  /// Adds a point. A later point of a stream replaces an earlier one. REQUIRES: `has_passed(entry)` takes no lock that
  /// a caller holds.
  template <class HasPassed>
  void remember(const Entry& entry, HasPassed&& has_passed) {
    constexpr std::size_t kMany = 64;
    const LockGuard lock(mutex_);
    if (latest_.size() >= kMany)
      std::erase_if(latest_, [&](const auto& known) { return has_passed(entry_of(known)); });
    std::uint64_t& value = latest_[{entry.putter, entry.point.slot}];
    if (value < entry.point.value) value = entry.point.value;
  }
  std::vector<Entry> all() const {
    std::vector<Entry> entries;
    const LockGuard lock(mutex_);
    for (const auto& known : latest_) entries.push_back(entry_of(known));
    return entries;
  }

 private:
  using Latest = std::map<std::pair<ProcessId, std::uint32_t>, std::uint64_t>;
  static Entry entry_of(const Latest::value_type& known) {
    return {known.first.first, {known.first.second, known.second}};
  }

  mutable Mutex mutex_;
  Latest latest_ GUARDED_BY(mutex_);  ///< the latest point of each putter and slot
};

class Peers;

/// The order between streams of this process and of others: marks in own streams, waits for marks of others, and
/// references that end in stream order.
///
/// Thread safety: all members may be called concurrently, except the members for the runtime.
class StreamOrder {
 public:
  StreamOrder(const ProcessId& self, Peers& peers, EventLoop& loop);

  /// Returns a point after all work that is in the stream now, for which others can wait.
  TimelinePoint mark(Device device, Stream stream) { return timeline_.mark(device, stream); }
  /// Returns points after the work of the current streams (CurrentStreams), or else of `stream` on each device that
  /// this process has used. Idle streams have no point, nor has a stream that cannot be marked now, which is logged.
  std::vector<TimelinePoint> mark_work(Stream stream);
  /// Makes a stream wait for a point in a stream of `maker`, unless the point has passed.
  void wait_for(const ProcessId& maker, const TimelinePoint& point, Device device, Stream stream);
  /// Asks `maker` for the words of its timeline if necessary, so that a later wait_for() asks no other process and is
  /// quick. Throws what connecting throws.
  void prepare_wait(const ProcessId& maker, Device device);
  enum class MarkState : std::uint8_t { yes, no, unknown };  ///< unknown: only the maker can tell
  MarkState has_passed(const ProcessId& maker, const TimelinePoint& point) const;
  /// Returns whether wait_for() might keep the host waiting. REQUIRES: has_passed() knows the maker.
  bool may_wait_on_host(const ProcessId& maker, Device device) const;

  /// Notes that this process shares or opens memory of `device` in `stream`. At the first use of a device, makes the
  /// stream wait for all points of values that this process has got.
  void note_use(Device device, Stream stream = {});
  const UsedDevices& used_devices() const noexcept { return used_devices_; }
  /// Remembers the point of a value that this process has got, for devices that are used later.
  void remember_point(const ProcessId& putter, const TimelinePoint& point);
  /// Waits on the host until the point has passed, because the memory may be filled until then. Asks the maker for its
  /// words; does not wait if the maker is gone. Throws peer_died if the maker ended, or its device failed, before it
  /// reached the point.
  void wait_to_read(const ProcessId& maker, const TimelinePoint& point);
  /// Waits on the host, for streams that cannot wait. Asks no other process, and returns at once if the putter is
  /// unknown.
  void wait_on_host_for(const ProcessId& putter, const TimelinePoint& point);

  /// Wraps the tensor, so that its reference ends once `stream` has done the work that is in it when the tensor is
  /// dropped.
  Tensor order_release(const Tensor& tensor, Stream stream);
  /// Waits until the marks of this process are written, for at most ten seconds. A process that ends earlier loses
  /// marks.
  void settle() const noexcept;

  // The following members serve the runtime.
  Timeline& timeline() noexcept { return timeline_; }
  /// Ends releases that are due. Returns true while some are waiting.
  bool sweep_releases() noexcept { return releases_.sweep(); }
  /// Marks the releases that wait for a mark. May wait for room in a stream.
  void mark_left() noexcept { releases_.mark_left(); }
  std::size_t waiting_releases() const noexcept { return releases_.size(); }
  /// Stops making marks in the background. Waits for a mark that is being made.
  void stop_marking(std::chrono::milliseconds patience) noexcept { marking_.stop(patience); }

 private:
  /// Looks at waits, devices and releases. Returns a short pause after a new wait, which may end soon, and longer ones
  /// for older waits.
  Timer::Pause poll();
  void poll_soon() noexcept;
  bool poll_waits();

  const ProcessId self_;
  Peers& peers_;
  Timeline timeline_;
  UsedDevices used_devices_;
  ValuePoints value_points_;
  StreamReleases releases_;
  /// A thread of its own, because a mark may have to wait for room in the stream.
  Worker marking_{"onecopy-marks", [this] { releases_.mark_left(); }};
  std::atomic<bool> is_asked_{false};              ///< whether a look was requested since the last one
  std::chrono::milliseconds pause_{Timer::kSoon};  ///< used by the watch thread only
  Timer looks_;
};

}  // namespace onecopy
