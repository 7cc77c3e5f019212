// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "device/backend.h"
#include "device/order/registered_devices.h"
#include "os/fd.h"
#include "os/mapping.h"
#include "os/mutex.h"

namespace onecopy {

inline constexpr std::size_t kTimelineBytes = 64 << 10;
inline constexpr std::size_t kTimelineSlots = kTimelineBytes / sizeof(std::uint64_t) - 1;
/// Belongs to no stream: the reason why a device of a live process writes no words any more. 0 while all do.
inline constexpr std::size_t kFailureWord = kTimelineSlots;
/// Added to the words of a dead process or a failed device. The sum is beyond every value that is ever waited for,
/// past all of them in the cyclic comparison. Every reader still sees how far the streams had come. (All ones would
/// count as before.)
inline constexpr std::uint64_t kTimelineEnd = std::uint64_t{1} << 62;

using Word = std::atomic<std::uint64_t>;

/// How often a host of this process has waited for a stream since the start, because its device's streams cannot wait
/// for words or write them.
inline std::atomic<std::uint64_t> host_waits{0};

/// How far a stream had come: its word has the value, or a later one, once it has come that far.
struct TimelinePoint {
  std::uint32_t slot = 0;
  std::uint64_t value = 0;
  explicit operator bool() const noexcept { return value != 0; }
};

/// A page of words, one for each stream that others wait for; its streams write them, in order. Thread safety: all
/// members may be called concurrently.
class Timeline {
 public:
  /// Called once, when the device's driver is there and before the first mark.
  std::function<void()> on_first_mark;
  /// Called (without locks) when a stream has still to come to a mark. The caller must then call poll_devices()
  /// until it returns false.
  std::function<void()> on_wait;

  /// A point in the stream after all work that is in it now. If the device's streams cannot write words, a thread of
  /// the driver's does. If that is impossible, too, waits for the stream and returns an empty point: nothing is left
  /// to wait for. Throws the device's error once it has failed.
  TimelinePoint mark(Device device, Stream stream);
  bool has_passed(const TimelinePoint& point) const noexcept;
  /// Makes another stream of this process wait for the point, unless it has passed. If streams cannot wait, the host
  /// does. Throws the error of the device that was to come there, once it has failed.
  void wait(Device device, Stream stream, const TimelinePoint& point);
  /// The host waits, also if streams could.
  void wait_on_host_for(const TimelinePoint& point) const;
  /// Might wait() keep the host waiting? Also true as long as it is not known.
  bool may_wait_on_host(Device device) const { return !registered_.can_use(device); }
  /// Waits until all streams have come to their last marks, `patience` at most. A process that ends must do so: its
  /// handed-over marks are good only once they are written. Returns false if the time is up.
  bool settle(std::chrono::milliseconds patience) const noexcept;
  /// For each device whose streams have still to come to marks: asks whether it has failed, and if so ends its words,
  /// so that waiting ends. Returns true while there are such streams. Waits for nothing.
  bool poll_devices();
  /// As far as is known.
  bool has_failed(Device device) const noexcept;
  /// For other processes; waits for nothing. Throws bad_handle before the first mark(): no point exists then.
  Fd export_page();

 private:
  struct Line {
    explicit Line(std::uint32_t its_slot) : slot(its_slot) {}

    const std::uint32_t slot;
    /// Held while a value is enqueued, which may have to wait for room in the stream.
    Mutex order;
    std::atomic<std::uint64_t> last{0};
  };
  using Lines = std::map<std::pair<Device, void*>, Line>;
  struct Failure {
    Error error;
    /// Until then its words are ended again and again: writes from before the failure may arrive late.
    std::chrono::steady_clock::time_point until;
    bool ended_last = false;
  };

  void make_page() REQUIRES(mutex_);
  void check(Device device) const REQUIRES(mutex_);
  void check_written(const TimelinePoint& point) const REQUIRES(mutex_);
  void end(Device device) noexcept REQUIRES(mutex_);
  bool have_passed_all() const noexcept;
  std::optional<TimelinePoint> try_mark(Device device, Stream stream);
  TimelinePoint mark_or_wait(Device device, Stream stream);
  Line* find_line(Device device, Stream stream, bool& streams_write);
  std::set<Device> devices_at_work() const REQUIRES(mutex_);
  void poll(Device device);
  bool end_again() noexcept REQUIRES(mutex_);

  mutable Mutex mutex_;  ///< never held while the driver may wait
  int pid_ = 0;          ///< the maker of the page
  Fd file_;
  Mapping page_;
  std::atomic<const Word*> words_{nullptr};  ///< in the page
  RegisteredDevices registered_;
  Lines lines_ GUARDED_BY(mutex_);  ///< they stay
  std::map<Device, Failure> failed_ GUARDED_BY(mutex_);
  std::atomic<bool> has_failures_{false};  ///< for readers without the lock
};

/// Another process's timeline, as its waiters see it. Thread safety: all members may be called concurrently.
class ForeignTimeline {
 public:
  /// `is_gone` says whether the process has ended, also before end() was called.
  ForeignTimeline(const Fd& page, std::function<bool()> is_gone);

  /// Makes the stream wait for the point, unless it has passed. If streams cannot wait, the host does. Throws
  /// peer_died if the process ended, or its device failed, before its stream had come there.
  void wait(Device device, Stream stream, const TimelinePoint& point);
  /// The host waits, also if streams could. Throws as wait() does.
  void wait_on_host_for(const TimelinePoint& point);
  /// Registers the page with the device's driver, which takes a while at the first time.
  void prepare(Device device) { registered_.register_page(device, page_); }
  /// Might wait() keep the host waiting? Also true as long as it is not known.
  bool may_wait_on_host(Device device) const { return !registered_.can_use(device); }
  bool has_passed(const TimelinePoint& point) const noexcept;
  /// In a forked child, where no stream waits.
  void forget_awaited() noexcept NO_THREAD_SAFETY_ANALYSIS { awaited_.clear(); }
  // Around a fork: the child's watch thread will call end().
  void lock() NO_THREAD_SAFETY_ANALYSIS {
    mutex_.lock();
    registered_.lock();
  }
  void unlock() NO_THREAD_SAFETY_ANALYSIS {
    registered_.unlock();
    mutex_.unlock();
  }
  /// The process is gone, and its devices have stopped: ends all waiting for its words.
  void end() noexcept;
  enum class WaitState : std::uint8_t { nothing, something, never };
  /// Do streams of ours wait for it? A point that is never reached is reported once.
  WaitState look() noexcept;
  /// Why a device of the process writes no words any more, as "CUDA error 700". Empty while all do, and if the
  /// process has ended, which is the reason then.
  std::string failure() const;

 private:
  Word& word(std::uint32_t slot) const noexcept { return page_.as<Word>()[slot]; }
  void note_awaited(const TimelinePoint& point);
  void check_slot(const TimelinePoint& point) const;
  void check_written(const TimelinePoint& point) const;

  const std::function<bool()> is_gone_;
  mutable Mutex mutex_;
  std::map<std::uint32_t, std::uint64_t> awaited_
      GUARDED_BY(mutex_);  ///< by slot, the latest value that streams wait for
  Mapping page_;
  RegisteredDevices registered_;
};

/// Has `now` reached `value`? As the devices compare.
inline bool is_reached(std::uint64_t now, std::uint64_t value) noexcept {
  return static_cast<std::int64_t>(now - value) >= 0;
}

}  // namespace onecopy
