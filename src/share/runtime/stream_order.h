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
#include "os/process.h"
#include "os/worker.h"
#include "share/owner/stream_releases.h"

namespace onecopy {

/// The points that other streams had reached when they put values that this process has got. A device that this process
/// begins to use later comes after them, too. Points that are passed are forgotten.
///
/// Thread safety: all members may be called concurrently.
class ValuePoints {
 public:
  struct Entry {
    ProcessId putter;
    TimelinePoint point;
  };

  /// A later point of a stream replaces an earlier one. REQUIRES: `has_passed(entry)` takes no lock of a caller's.
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
  Latest latest_ GUARDED_BY(mutex_);  ///< by putter and slot
};

class Peers;

/// The order between streams of this process and streams of others: marks in ours, waits for theirs, and references
/// that end in stream order.
///
/// Thread safety: all members may be called concurrently, except the members for the runtime.
class StreamOrder {
 public:
  StreamOrder(const ProcessId& self, Peers& peers, EventLoop& loop);

  /// A point after all that is in the stream now, for others to wait for.
  TimelinePoint mark(Device device, Stream stream) { return timeline_.mark(device, stream); }
  /// Points after the work of the current streams (CurrentStreams), or else of `stream` on each device that this
  /// process has used. Idle streams have none. A stream that cannot be marked now has none either; logged.
  std::vector<TimelinePoint> mark_work(Stream stream);
  /// Makes a stream wait for a point in one of `maker`'s, unless it has passed.
  void wait_for(const ProcessId& maker, const TimelinePoint& point, Device device, Stream stream);
  /// Afterwards wait_for() asks no other process, and is quick. Throws as connecting does.
  void prepare_wait(const ProcessId& maker, Device device);
  enum class MarkState : std::uint8_t { yes, no, unknown };  ///< unknown: the maker would have to be asked
  MarkState has_passed(const ProcessId& maker, const TimelinePoint& point) const;
  /// Returns whether wait_for() might keep the host waiting. REQUIRES: has_passed() knows the maker.
  bool may_wait_on_host(const ProcessId& maker, Device device) const;

  /// Notes that this process shares or opens memory of `device` in `stream`. At the first use of a device the stream
  /// waits for all work that precedes values got so far.
  void note_use(Device device, Stream stream = {});
  const UsedDevices& used_devices() const noexcept { return used_devices_; }
  /// Devices that are used later come after this point of a value that was got.
  void remember_point(const ProcessId& putter, const TimelinePoint& point);
  /// The host waits for the point, unless it has passed: its memory is filled until then. Asks the maker for its words;
  /// if it is gone, it is not waited for. Throws peer_died if it ended, or its device failed, before it came there.
  void wait_to_read(const ProcessId& maker, const TimelinePoint& point);
  /// Waits on the host, for streams that cannot wait. Asks no other process: returns at once while the putter is not
  /// known.
  void wait_on_host_for(const ProcessId& putter, const TimelinePoint& point);

  /// Wraps the tensor: the reference ends once `stream` has done the work that is in it when the tensor is dropped.
  Tensor order_release(const Tensor& tensor, Stream stream);
  /// Waits until the marks of this process are written, ten seconds at most. A process that ends before loses them.
  void settle() const noexcept;

  // The following members serve the runtime.
  Timeline& timeline() noexcept { return timeline_; }
  /// Ends releases that are due. True while some are waiting.
  bool sweep_releases() noexcept { return releases_.sweep(); }
  /// Marks the ends of releases that wait for a mark. May have to wait for room in a stream.
  void mark_left() noexcept { releases_.mark_left(); }
  std::size_t waiting_releases() const noexcept { return releases_.size(); }
  /// Ends marks in the background; waits for a mark that is under way.
  void stop_marking(std::chrono::milliseconds patience) noexcept { marking_.stop(patience); }

 private:
  /// Looks at waits, devices and releases. A new wait may end soon; one that was looked at before may take longer
  /// still.
  Timer::Pause look();
  void look_soon() noexcept;
  bool poll_waits();

  const ProcessId self_;
  Peers& peers_;
  Timeline timeline_;
  UsedDevices used_devices_;
  ValuePoints value_points_;
  StreamReleases releases_;
  /// A thread of its own: a mark may have to wait for room in the stream.
  Worker marking_{"onecopy-marks", [this] { releases_.mark_left(); }};
  std::atomic<bool> is_asked_{false};              ///< since the last look
  std::chrono::milliseconds pause_{Timer::kSoon};  ///< the watch thread's own
  Timer looks_;
};

}  // namespace onecopy
