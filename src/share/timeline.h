// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "onecopy/device/backend.h"
#include "onecopy/os/fd.h"
#include "onecopy/os/mapping.h"

namespace onecopy {

inline constexpr std::size_t kTimelineBytes = 64 << 10;
inline constexpr std::size_t kTimelineSlots = kTimelineBytes / sizeof(std::uint64_t);
/// Added to what a dead process's words say: beyond every value that is ever waited for, in the cyclic comparison
/// past all of them, and everybody still sees how far its streams had come. (All ones would count as before.)
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

  /// A point in the stream after all that is in it now. Where the device's streams cannot write words, a thread
  /// of the driver's does. Empty where nobody can: then everything in the stream has been waited for, and there
  /// is nothing to wait for any more.
  TimelinePoint mark(Device device, Stream stream);
  bool has_passed(const TimelinePoint& point) const noexcept;
  /// Makes another stream of this process wait for the point, unless it has passed. Where streams cannot wait,
  /// the host does.
  void wait(Device device, Stream stream, const TimelinePoint& point);
  /// Might wait() keep the host waiting? As long as it is not known, too.
  bool may_wait_on_host(Device device) const;
  /// Waits until all streams have come to their last marks, `patience` at most: what was handed over by a process
  /// that ends is only good once it is written. False when they have not.
  bool settle(std::chrono::milliseconds patience) const noexcept;
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

  /// REQUIRES: mutex_.
  void make_page();
  bool have_passed_all() const noexcept;
  std::optional<TimelinePoint> try_mark(Device device, Stream stream);
  Line* find_line(Device device, Stream stream, bool& streams_write);

  mutable std::mutex mutex_;  ///< never held while the driver may wait
  int pid_ = 0;               ///< of whoever made the page
  Fd file_;
  Mapping page_;
  std::atomic<const Word*> words_{nullptr};  ///< in the page
  std::map<Device, bool> registered_;        ///< cards of one kind may differ in what their streams can
  std::map<std::pair<Device, void*>, Line> lines_;  ///< they stay
};

/// Another process's timeline, as those see it who wait for it.
/// Thread safety: all members may be called concurrently.
class ForeignTimeline {
 public:
  /// `is_gone` says whether the process has ended, before anybody has called end().
  ForeignTimeline(const Fd& page, std::function<bool()> is_gone);

  /// Makes the stream wait for the point, unless it has passed. Where streams cannot wait, the host does.
  /// Throws peer_died when the process ended before its stream had come there.
  void wait(Device device, Stream stream, const TimelinePoint& point);
  /// Makes the page known to the device's driver, which takes a while at the first time.
  void prepare(Device device);
  /// Might wait() keep the host waiting? As long as it is not known, too.
  bool may_wait_on_host(Device device) const;
  bool has_passed(const TimelinePoint& point) const noexcept;
  // Around a fork: the child's watch thread will call end().
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  /// The process is gone, and its devices have stopped: nobody waits for it any more. False when streams of
  /// ours were waiting for what is never done.
  bool end() noexcept;

 private:
  Word& word(std::uint32_t slot) const noexcept { return page_.as<Word>()[slot]; }
  bool streams_wait(Device device);
  void note_awaited(const TimelinePoint& point);
  void check_slot(const TimelinePoint& point) const;
  void check_written(const TimelinePoint& point) const;

  const std::function<bool()> is_gone_;
  mutable std::mutex mutex_;
  std::map<std::uint32_t, std::uint64_t> awaited_;  ///< by slot, the latest value that streams wait for
  Mapping page_;
  std::map<Device, bool> registered_;  ///< cards of one kind may differ in what their streams can
};

/// Has `now` reached `value`? As the devices compare.
inline bool is_reached(std::uint64_t now, std::uint64_t value) noexcept {
  return static_cast<std::int64_t>(now - value) >= 0;
}

}  // namespace onecopy
