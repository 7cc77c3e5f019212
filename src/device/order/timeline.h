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
#include "os/fd.h"
#include "os/mapping.h"
#include "os/mutex.h"

namespace onecopy {

inline constexpr std::size_t kTimelineBytes = 64 << 10;
inline constexpr std::size_t kTimelineSlots = kTimelineBytes / sizeof(std::uint64_t) - 1;
/// The index of the word that belongs to no stream: it holds the reason why a device of a live process has stopped
/// writing words, or 0.
inline constexpr std::size_t kFailureWord = kTimelineSlots;
/// The number that is added to the words of a dead process or a failed device. The sum lies beyond every value that is
/// waited for in the cyclic comparison, and still shows how far the streams had come. (All ones would compare as
/// earlier.)
inline constexpr std::uint64_t kTimelineEnd = std::uint64_t{1} << 62;

using Word = std::atomic<std::uint64_t>;

/// The number of times the host of this process has waited for a stream since the start, because the device's streams
/// cannot wait for words or write them.
inline std::atomic<std::uint64_t> host_waits{0};

/// A point of a stream. The stream has reached it once its word has this value or a later one.
struct TimelinePoint {
  std::uint32_t slot = 0;
  std::uint64_t value = 0;
  explicit operator bool() const noexcept { return value != 0; }
};

/// A record of the devices whose drivers know a page of words, and of whether their streams can write it and wait for
/// it, in which cards of one type may differ.
///
/// Thread safety: all members may be called concurrently. Only register_page() waits for the driver, while any of the
/// process's streams is full.
class RegisteredDevices {
 public:
  /// Registers the page with the device's driver at the first call. Returns whether its streams can use it.
  bool register_page(Device device, const Mapping& page);
  /// Returns whether the device's streams can use the page; false while this is unknown.
  bool can_use(Device device) const { return find(device).value_or(false); }

  // lock() and unlock() surround a fork. Neither waits for the driver, which a child cannot use.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

 private:
  std::optional<bool> find(Device device) const;

  Mutex registering_;  ///< taken before mutex_; held while the driver waits
  mutable Mutex mutex_;
  std::map<Device, bool> known_ GUARDED_BY(mutex_);
};

/// A page of words, one for each stream that others wait for; the streams write their words in order. Thread safety:
/// all members may be called concurrently.
class Timeline {
 public:
  /// A callback for the first mark. Called once, after the device's driver has been loaded.
  std::function<void()> on_first_mark;
  /// A callback, called without locks, for a stream that has not reached a mark. The owner must then call
  /// poll_devices() until it returns false.
  std::function<void()> on_wait;

  /// Returns a point in the stream after all work that is in it now. If the device's streams cannot write words, a
  /// thread of the driver does. If that is impossible as well, waits for the stream and returns an empty point. Throws
  /// the device's error once it has failed.
  TimelinePoint mark(Device device, Stream stream);
  bool has_passed(const TimelinePoint& point) const noexcept;
  /// Makes another stream of this process wait for the point, unless it has passed. The host waits if streams cannot.
  /// Throws the error of the device that was to reach the point, once it has failed.
  void wait(Device device, Stream stream, const TimelinePoint& point);
  /// Waits on the host, even if streams could wait.
  void wait_on_host_for(const TimelinePoint& point) const;
  /// Returns whether wait() might block the host; true while this is unknown.
  bool may_wait_on_host(Device device) const { return !registered_.can_use(device); }
  /// Waits up to `patience` until all streams have reached their last marks. A process must do so before it ends,
  /// because the points that it has handed over are valid only once their values are written. Returns false on a
  /// timeout.
  bool settle(std::chrono::milliseconds patience) const noexcept;
  /// Checks each device whose streams have not reached their marks, and if it has failed, ends its words, so that waits
  /// for them end. Returns true while a stream has not reached its mark. Does not wait.
  bool poll_devices();
  /// Returns whether the device is known to have failed.
  bool has_failed(Device device) const noexcept;
  /// Returns the page for other processes, without waiting. Throws bad_handle before the first mark(), when no point
  /// exists.
  Fd export_page();

 private:
  struct Line {
    explicit Line(std::uint32_t its_slot) : slot(its_slot) {}

    const std::uint32_t slot;
    /// The lock under which a value is enqueued, which may wait for room in the stream.
    Mutex order;
    std::atomic<std::uint64_t> last{0};
  };
  using Lines = std::map<std::pair<Device, void*>, Line>;
  struct Failure {
    Error error;
    /// The time until which the words are ended repeatedly, because writes from before the failure may arrive late.
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
  int pid_ = 0;          ///< the process that created the page
  Fd file_;
  Mapping page_;
  std::atomic<const Word*> words_{nullptr};  ///< the words, which are in the page
  RegisteredDevices registered_;
  Lines lines_ GUARDED_BY(mutex_);  ///< entries are never removed
  std::map<Device, Failure> failed_ GUARDED_BY(mutex_);
  std::atomic<bool> has_failures_{false};  ///< read without the lock
};

/// The timeline of another process, as this process waits for it. Thread safety: all members may be called
/// concurrently.
class ForeignTimeline {
 public:
  /// Maps the page. `is_gone` returns whether the process has ended, even before end() is called.
  ForeignTimeline(const Fd& page, std::function<bool()> is_gone);

  /// Makes the stream wait for the point, unless it has passed. The host waits if streams cannot. Throws peer_died if
  /// the process ended, or its device failed, before its stream reached the point.
  void wait(Device device, Stream stream, const TimelinePoint& point);
  /// Waits on the host, even if streams could wait. Throws what wait() throws.
  void wait_on_host_for(const TimelinePoint& point);
  /// Registers the page with the device's driver, which takes a while the first time.
  void prepare(Device device) { registered_.register_page(device, page_); }
  /// Returns whether wait() might block the host; true while this is unknown.
  bool may_wait_on_host(Device device) const { return !registered_.can_use(device); }
  bool has_passed(const TimelinePoint& point) const noexcept;
  /// Forgets the waits in a forked child, where no stream waits.
  void forget_awaited() noexcept NO_THREAD_SAFETY_ANALYSIS { awaited_.clear(); }
  // lock() and unlock() surround a fork: the child's watch thread will call end().
  void lock() NO_THREAD_SAFETY_ANALYSIS {
    mutex_.lock();
    registered_.lock();
  }
  void unlock() NO_THREAD_SAFETY_ANALYSIS {
    registered_.unlock();
    mutex_.unlock();
  }
  /// Ends all waits for the words of a process that is gone and whose devices have stopped.
  void end() noexcept;
  enum class WaitState : std::uint8_t { nothing, something, never };
  /// Returns whether streams of this process wait for the other process. Reports a point that will never be reached
  /// once.
  WaitState poll() noexcept;
  /// Returns why a device of the process has stopped writing words, e.g. "CUDA error 700". Empty while all devices
  /// write, and after the process has ended, which is then the reason.
  std::string failure() const;

 private:
  Word& word(std::uint32_t slot) const noexcept { return page_.as<Word>()[slot]; }
  void note_awaited(const TimelinePoint& point);
  void check_slot(const TimelinePoint& point) const;
  void check_written(const TimelinePoint& point) const;

  const std::function<bool()> is_gone_;
  mutable Mutex mutex_;
  std::map<std::uint32_t, std::uint64_t> awaited_
      GUARDED_BY(mutex_);  ///< by slot, the last value that streams wait for
  Mapping page_;
  RegisteredDevices registered_;
};

/// Returns whether `now` has reached `value`, in the comparison of the devices.
inline bool is_reached(std::uint64_t now, std::uint64_t value) noexcept {
  return static_cast<std::int64_t>(now - value) >= 0;
}

}  // namespace onecopy
