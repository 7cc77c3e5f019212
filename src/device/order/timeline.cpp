// SPDX-License-Identifier: Apache-2.0
#include "device/order/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "core/point.h"
#include "core/throw_error.h"
#include "os/memfd.h"
#include "os/process.h"

namespace onecopy {

namespace {

/// Waits until the word reaches the value. If the word's process has ended, the watch thread stores the value that ends
/// the wait.
void wait_on_host(const Word& word, std::uint64_t value) {
  ++host_waits;
  while (!is_reached(word.load(), value)) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

/// Returns how far the stream had come, with the mark of the end removed.
std::uint64_t without_end(std::uint64_t word) noexcept { return word & ~kTimelineEnd; }

bool is_cut_off(std::uint64_t word, std::uint64_t value) noexcept {
  return (word & kTimelineEnd) != 0 && !is_reached(without_end(word), value);
}

std::string text_of_failure(std::uint64_t word) {
  if (word == 0) return {};
  const bool cuda = word >> 32 == static_cast<std::uint64_t>(ErrorDomain::cuda);
  return fmt::format("{} error {}", cuda ? "CUDA" : "ACL", static_cast<std::int32_t>(word));
}

}  // namespace

std::optional<bool> RegisteredDevices::find(Device device) const {
  const LockGuard lock(mutex_);
  const auto at = known_.find(device);
  if (at == known_.end()) return {};
  return at->second;
}

bool RegisteredDevices::register_page(Device device, const Mapping& page) {
  if (const auto known = find(device)) return *known;
  const LockGuard one_at_a_time(registering_);
  if (const auto known = find(device)) return *known;
  point("timeline.register");
  const bool can_use = backend(device.type).register_words(device.index, page.data(), page.size());
  const LockGuard lock(mutex_);
  return known_[device] = can_use;
}

void Timeline::make_page() {
  if (page_) return;
  Fd file = create_memfd("onecopy-timeline", kTimelineBytes);
  page_ = Mapping::of(file, kTimelineBytes, Access::read_write);
  file_ = std::move(file);
  pid_ = current_pid();
  words_.store(page_.as<Word>(), std::memory_order_release);
  if (on_first_mark) on_first_mark();
}

/// Returns the stream's line; null for a new stream if all words are taken.
Timeline::Line* Timeline::find_line(Device device, Stream stream, bool& streams_write) {
  {
    const LockGuard lock(mutex_);
    check(device);
    make_page();
  }
  streams_write = registered_.register_page(device, page_);
  const LockGuard lock(mutex_);
  const std::pair key(device, stream.native);
  if (lines_.size() >= kTimelineSlots && !lines_.contains(key)) return nullptr;
  return &lines_.try_emplace(key, static_cast<std::uint32_t>(lines_.size())).first->second;
}

/// Enqueues the values in order, before another process can know of the mark. The driver may wait for room in the
/// stream, which another thread may have to make. Only users of that stream wait with it.
std::optional<TimelinePoint> Timeline::try_mark(Device device, Stream stream) {
  bool streams_write = false;
  Line* const line = find_line(device, stream, streams_write);
  if (!line) return {};
  Backend& vendor = backend(device.type);
  Word& word = page_.as<Word>()[line->slot];
  const LockGuard in_order(line->order);
  const std::uint64_t value = line->last + 1;
  point("timeline.mark");
  if (streams_write) vendor.write_word(device.index, stream, word, value);
  else if (!vendor.write_word_by_host(device.index, stream, word, value)) return {};
  line->last = value;
  return TimelinePoint{line->slot, value};
}

TimelinePoint Timeline::mark_or_wait(Device device, Stream stream) {
  if (const auto point = try_mark(device, stream)) return *point;
  ++host_waits;
  backend(device.type).synchronize(device.index, stream);
  return {};
}

TimelinePoint Timeline::mark(Device device, Stream stream) {
  try {
    const TimelinePoint point = mark_or_wait(device, stream);
    if (on_wait && !has_passed(point)) on_wait();
    return point;
  } catch (const Error&) {
    poll(device);
    const LockGuard lock(mutex_);
    check(device);
    throw;
  }
}

void Timeline::wait(Device device, Stream stream, const TimelinePoint& point) {
  Word* word = nullptr;
  {
    const LockGuard lock(mutex_);
    if (!page_.data() || point.slot >= kTimelineSlots)
      throw Error(ErrorCode::bad_handle, "the handle waits for an invalid stream");
    word = page_.as<Word>() + point.slot;
    if (has_passed(point)) return;
    check_written(point);
  }
  const bool streams_wait = registered_.register_page(device, page_);
  onecopy::point("timeline.wait");
  if (streams_wait) return backend(device.type).wait_for_word(device.index, stream, *word, point.value);
  wait_on_host(*word, point.value);
  const LockGuard lock(mutex_);
  check_written(point);
}

void Timeline::wait_on_host_for(const TimelinePoint& point) const {
  const Word* const words = words_.load(std::memory_order_acquire);
  if (words && point.slot < kTimelineSlots) wait_on_host(words[point.slot], point.value);
}

bool Timeline::has_passed(const TimelinePoint& point) const noexcept {
  if (!point) return true;
  const Word* const words = words_.load(std::memory_order_acquire);
  return words && point.slot < kTimelineSlots &&
         is_reached(without_end(words[point.slot].load()), point.value);
}

bool Timeline::have_passed_all() const noexcept {
  const LockGuard lock(mutex_);
  return pid_ != current_pid() || std::all_of(lines_.begin(), lines_.end(), [&](const auto& line) {
           return is_reached(page_.as<Word>()[line.second.slot].load(), line.second.last);
         });
}

bool Timeline::settle(std::chrono::milliseconds patience) const noexcept {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!have_passed_all()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

/// Returns the page without the lock: the file exists before the words do, and stays.
Fd Timeline::export_page() {
  if (!words_.load(std::memory_order_acquire))
    throw Error(ErrorCode::bad_handle, "no handle of this process waits for one of its streams");
  return file_.duplicate();
}

ForeignTimeline::ForeignTimeline(const Fd& page, std::function<bool()> is_gone)
    : is_gone_(std::move(is_gone)) {
  if (file_size(page) != kTimelineBytes || (seals_of(page) & kSealShrink) == 0)
    throw Error(ErrorCode::protocol, "a timeline of the wrong size, or not sealed against shrinking");
  page_ = Mapping::of(page, kTimelineBytes, Access::read_write);
}

void ForeignTimeline::check_slot(const TimelinePoint& point) const {
  if (point.slot >= kTimelineSlots)
    throw Error(ErrorCode::bad_handle, "the handle waits for an invalid stream");
}

/// Throws if the point will not be reached: work that a stream had not done when its process was killed, or its device
/// failed, is never done.
void ForeignTimeline::check_written(const TimelinePoint& point) const {
  if (!is_cut_off(word(point.slot).load(), point.value)) return;
  const std::string why = failure();
  throw_error(ErrorCode::peer_died,
              "{} before its stream had finished the work on it, so the content may be half written",
              why.empty() ? "the process that handed this tensor over ended"
                          : "a device of the process that handed this tensor over failed with " + why);
}

std::string ForeignTimeline::failure() const {
  return is_gone_() ? std::string() : text_of_failure(word(kFailureWord).load());
}

/// Notes the value before the words are read once more: either end() finds the note, or the read finds the end.
void ForeignTimeline::note_awaited(const TimelinePoint& point) {
  const LockGuard lock(mutex_);
  std::uint64_t& latest = awaited_[point.slot];
  latest = std::max(latest, point.value);
}

bool ForeignTimeline::has_passed(const TimelinePoint& point) const noexcept {
  return point.slot < kTimelineSlots && is_reached(without_end(word(point.slot).load()), point.value);
}

void ForeignTimeline::wait(Device device, Stream stream, const TimelinePoint& point) {
  check_slot(point);
  if (!is_reached(word(point.slot).load(), point.value)) {
    if (is_gone_()) end();
    if (registered_.register_page(device, page_)) {
      note_awaited(point);
      check_written(point);
      return backend(device.type).wait_for_word(device.index, stream, word(point.slot), point.value);
    }
    wait_on_host(word(point.slot), point.value);
  }
  check_written(point);
}

void ForeignTimeline::wait_on_host_for(const TimelinePoint& point) {
  check_slot(point);
  if (is_gone_()) end();
  wait_on_host(word(point.slot), point.value);
  check_written(point);
}

/// Ends the words. Every borrower of that process does so, because they share the words.
void ForeignTimeline::end() noexcept {
  for (std::uint32_t slot = 0; slot < kTimelineSlots; ++slot) word(slot).fetch_or(kTimelineEnd);
}

ForeignTimeline::WaitState ForeignTimeline::poll() noexcept {
  const LockGuard lock(mutex_);
  std::erase_if(awaited_, [&](const auto& a) { return has_passed({a.first, a.second}); });
  const bool is_never = std::erase_if(awaited_, [&](const auto& a) {
                          return is_cut_off(word(a.first).load(), a.second);
                        }) != 0;
  if (is_never) return WaitState::never;
  return awaited_.empty() ? WaitState::nothing : WaitState::something;
}

}  // namespace onecopy
