// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "device/backend.h"
#include "device/order/registered_devices.h"
#include "os/fd.h"
#include "os/mapping.h"

namespace onecopy {

inline constexpr std::size_t kTimelineBytes = 64 << 10;
inline constexpr std::size_t kTimelineSlots = kTimelineBytes / sizeof(std::uint64_t) - 1;
/// No stream's: why a device of a process that lives writes no words any more. 0 while all do.
inline constexpr std::size_t kFailureWord = kTimelineSlots;
/// Added to what a dead process's words say, or a failed device's: beyond every value that is ever waited for, in
/// the cyclic comparison past all of them, and everybody still sees how far its streams had come. (All ones would
/// count as before.)
inline constexpr std::uint64_t kTimelineEnd = std::uint64_t{1} << 62;

using Word = std::atomic<std::uint64_t>;

/// How often a host of this process has waited for a stream since the start, because its device's streams can
/// not wait for words or write them.
inline std::atomic<std::uint64_t> host_waits{0};

/// How far a stream had come: its word has the value, or a later one, once it has come that far.
struct TimelinePoint {
  std::uint32_t slot = 0;
  std::uint64_t value = 0;
  explicit operator bool() const noexcept { return value != 0; }
};

/// A page of words, one for each stream that others wait for; its streams write them, in order.
/// Thread safety: all members may be called concurrently.
class Timeline {
 public:
  /// Called once, when the device's driver is there and before the first mark.
  std::function<void()> on_first_mark;
  /// Called (without locks) when a stream has still to come to a mark: somebody has to call
  /// look_after_devices() until it says no more.
  std::function<void()> on_wait;

  /// A point in the stream after all that is in it now. Where the device's streams cannot write words, a thread
  /// of the driver's does. Empty where nobody can: then everything in the stream has been waited for, and there
  /// is nothing to wait for any more. Throws the device's error once it has failed.
  TimelinePoint mark(Device device, Stream stream);
  bool has_passed(const TimelinePoint& point) const noexcept;
  /// Makes another stream of this process wait for the point, unless it has passed. Where streams cannot wait,
  /// the host does. Throws the error of the device that was to come there, once it has failed.
  void wait(Device device, Stream stream, const TimelinePoint& point);
  /// The host waits, whatever streams can.
  void wait_on_host_for(const TimelinePoint& point) const;
  /// Might wait() keep the host waiting? As long as it is not known, too.
  bool may_wait_on_host(Device device) const { return !registered_.can_use(device); }
  /// Waits until all streams have come to their last marks, `patience` at most: what was handed over by a process
  /// that ends is only good once it is written. False when they have not.
  bool settle(std::chrono::milliseconds patience) const noexcept;
  /// Asks the devices whose streams have still to come to marks whether they have failed, and ends the words of
  /// those that have: nobody waits for them any more. True while there are such streams. Waits for nobody.
  bool look_after_devices();
  /// As far as is known.
  bool has_failed(Device device) const noexcept;
  /// For other processes; waits for nobody. Throws bad_handle before the first mark(): nobody can have a point
  /// to wait for.
  Fd export_page();

 private:
  struct Line {
    explicit Line(std::uint32_t its_slot) : slot(its_slot) {}

    const std::uint32_t slot;
    std::mutex order;  ///< while a value is enqueued, which may have to wait for room in the stream
    std::atomic<std::uint64_t> last{0};
  };
  using Lines = std::map<std::pair<Device, void*>, Line>;
  struct Failure {
    Error error;
    /// Until then its words are ended again and again: what it wrote when it failed may be late.
    std::chrono::steady_clock::time_point until;
    bool ended_last = false;
  };

  /// REQUIRES: mutex_, as the next three.
  void make_page();
  void check(Device device) const;
  void check_written(const TimelinePoint& point) const;
  void end(Device device) noexcept;
  bool have_passed_all() const noexcept;
  std::optional<TimelinePoint> try_mark(Device device, Stream stream);
  TimelinePoint mark_or_wait(Device device, Stream stream);
  Line* find_line(Device device, Stream stream, bool& streams_write);
  std::set<Device> devices_at_work() const;
  void look_after(Device device);
  bool end_again() noexcept;

  mutable std::mutex mutex_;  ///< never held while the driver may wait
  int pid_ = 0;               ///< of whoever made the page
  Fd file_;
  Mapping page_;
  std::atomic<const Word*> words_{nullptr};  ///< in the page
  RegisteredDevices registered_;
  Lines lines_;  ///< they stay
  std::map<Device, Failure> failed_;
  std::atomic<bool> has_failures_{false};  ///< for who takes no lock
};

/// Another process's timeline, as those see it who wait for it.
/// Thread safety: all members may be called concurrently.
class ForeignTimeline {
 public:
  /// `is_gone` says whether the process has ended, before anybody has called end().
  ForeignTimeline(const Fd& page, std::function<bool()> is_gone);

  /// Makes the stream wait for the point, unless it has passed. Where streams cannot wait, the host does.
  /// Throws peer_died when the process ended, or its device failed, before its stream had come there.
  void wait(Device device, Stream stream, const TimelinePoint& point);
  /// The host waits, whatever streams can. Throws the same.
  void wait_on_host_for(const TimelinePoint& point);
  /// Makes the page known to the device's driver, which takes a while at the first time.
  void prepare(Device device) { registered_.make_known(device, page_); }
  /// Might wait() keep the host waiting? As long as it is not known, too.
  bool may_wait_on_host(Device device) const { return !registered_.can_use(device); }
  bool has_passed(const TimelinePoint& point) const noexcept;
  /// In a forked child, where no stream waits.
  void forget_awaited() noexcept { awaited_.clear(); }
  // Around a fork: the child's watch thread will call end().
  void lock() {
    mutex_.lock();
    registered_.lock();
  }
  void unlock() {
    registered_.unlock();
    mutex_.unlock();
  }
  /// The process is gone, and its devices have stopped: nobody waits for it any more.
  void end() noexcept;
  enum class Awaited : std::uint8_t { nothing, something, never };
  /// Do streams of ours wait for it? What is never done is said once.
  Awaited look() noexcept;
  /// Why a device of the process writes no words any more, as "CUDA error 700"; empty while all do, and when the
  /// process has ended: then that is why.
  std::string failure() const;

 private:
  Word& word(std::uint32_t slot) const noexcept { return page_.as<Word>()[slot]; }
  void note_awaited(const TimelinePoint& point);
  void check_slot(const TimelinePoint& point) const;
  void check_written(const TimelinePoint& point) const;

  const std::function<bool()> is_gone_;
  mutable std::mutex mutex_;
  std::map<std::uint32_t, std::uint64_t> awaited_;  ///< by slot, the latest value that streams wait for
  Mapping page_;
  RegisteredDevices registered_;
};

/// Has `now` reached `value`? As the devices compare.
inline bool is_reached(std::uint64_t now, std::uint64_t value) noexcept {
  return static_cast<std::int64_t>(now - value) >= 0;
}

}  // namespace onecopy
