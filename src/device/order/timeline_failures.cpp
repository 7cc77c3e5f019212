// SPDX-License-Identifier: Apache-2.0
// This file ends a timeline's words when a device has failed and its process lives.
#include <fmt/format.h>

#include "device/order/timeline.h"
#include "onecopy/core/error.h"
#include "os/log.h"

namespace onecopy {
namespace {

constexpr std::chrono::seconds kLateWords{1};

std::uint64_t to_word(const Error& error) noexcept {
  return static_cast<std::uint64_t>(error.domain()) << 32 | static_cast<std::uint32_t>(error.vendor_code());
}

}  // namespace

void Timeline::check(Device device) const {
  const auto failed = failed_.find(device);
  if (failed != failed_.end()) throw Error(failed->second.error);
}

/// Throws if the point will not be reached: work that a failed device's stream had not done is never done.
void Timeline::check_written(const TimelinePoint& point) const {
  if (failed_.empty() || has_passed(point)) return;
  for (const auto& [key, line] : lines_)
    if (line.slot == point.slot) check(key.first);
}

/// Ends the device's words, which show the streams' progress before the failure. No further values are written.
void Timeline::end(Device device) noexcept {
  for (const auto& [key, line] : lines_)
    if (key.first == device) page_.as<Word>()[line.slot].fetch_or(kTimelineEnd);
}

bool Timeline::has_failed(Device device) const noexcept {
  if (!has_failures_) return false;
  const LockGuard lock(mutex_);
  return failed_.contains(device);
}

std::set<Device> Timeline::devices_at_work() const {
  std::set<Device> devices;
  for (const auto& [key, line] : lines_)
    if (!failed_.contains(key.first) && !has_passed({line.slot, line.last})) devices.insert(key.first);
  return devices;
}

void Timeline::poll(Device device) {
  const std::optional<Error> why = backend(device.type).failure(device.index);
  if (!why) return;
  const LockGuard lock(mutex_);
  const Error error(why->code(), fmt::format("{} has failed: {}", device.str(), why->what()),
                    why->vendor_code(), why->domain());
  const auto until = std::chrono::steady_clock::now() + kLateWords;
  if (!failed_.try_emplace(device, Failure{error, until}).second) return;
  has_failures_ = true;
  if (page_.data()) page_.as<Word>()[kFailureWord] = to_word(error);
  end(device);
  log_error(
      "{}; other processes that wait for its streams go on and are told, and memory released in their "
      "order stays reserved until this process ends",
      error.what());
}

/// Ends the words of failed devices again. Returns true while this must be repeated.
bool Timeline::end_again() noexcept {
  const auto now = std::chrono::steady_clock::now();
  bool again = false;
  for (auto& [device, failure] : failed_) {
    if (failure.ended_last) continue;
    failure.ended_last = now > failure.until;
    end(device);
    again = again || !failure.ended_last;
  }
  return again;
}

bool Timeline::poll_devices() {
  ReleasableLock lock(mutex_);
  const std::set<Device> at_work = devices_at_work();
  const bool again = end_again();
  lock.unlock();
  for (const Device device : at_work) poll(device);
  return again || !at_work.empty();
}

}  // namespace onecopy
