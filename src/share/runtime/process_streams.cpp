// SPDX-License-Identifier: Apache-2.0
// What is ordered in the streams of devices, of this process or another.
#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "share/runtime/process.h"

namespace onecopy {

void Process::wait_for(const ProcessId& maker, const TimelinePoint& point, Device device, Stream stream) {
  if (maker == id_) return timeline_.wait(device, stream, point);
  ForeignTimeline* const timeline = importer_.timeline_of(maker);
  if (!timeline) return;
  timeline->wait(device, stream, point);
  if (!timeline->has_passed(point)) watch_.request_tick();  // see look_after_waits()
}

/// They take as long as they take. What comes to its mark may be one of many.
Watch::Again Process::look_after_streams() {
  const bool waiting = look_after_waits();
  const bool at_work = timeline_.look_after_devices();
  const std::size_t before = releases_.size();
  const bool releasing = releases_.sweep();
  if (releasing && releases_.size() < before) return Watch::Again::soon;
  return waiting || at_work || releasing ? Watch::Again::later : Watch::Again::no;
}

/// True while streams of ours wait for other processes'.
bool Process::look_after_waits() {
  bool waiting = false;
  for (const auto& peer : importer_.peers()) waiting = peer->look_after_waits() || waiting;
  return waiting;
}

void Process::prepare_wait(const ProcessId& maker, Device device) {
  if (maker == id_) return;
  if (ForeignTimeline* timeline = importer_.timeline_of(maker)) timeline->prepare(device);
}

Process::Reached Process::has_passed(const ProcessId& maker, const TimelinePoint& point) const {
  if (maker == id_) return timeline_.has_passed(point) ? Reached::yes : Reached::no;
  const ForeignTimeline* timeline = importer_.known_timeline_of(maker);
  if (!timeline) return Reached::unknown;
  return timeline->has_passed(point) ? Reached::yes : Reached::no;
}

bool Process::may_wait_on_host(const ProcessId& maker, Device device) const {
  if (maker == id_) return timeline_.may_wait_on_host(device);
  const ForeignTimeline* timeline = importer_.known_timeline_of(maker);
  return !timeline || timeline->may_wait_on_host(device);
}

/// They may take their time, or never come there: whoever opens a tensor is not told of that.
void Process::note_use(Device device, Stream stream) {
  if (device == kCpu || !used_devices_.note(device)) return;
  for (const ValuePoints::Entry& entry : value_points_.all()) {
    try {
      wait_for(entry.putter, entry.point, device, stream);
    } catch (const Error& error) {
      log_warning(fmt::format("{} is used before the work that a value came after is done: {}",
                              device.str(), error.what()));
    }
  }
}

void Process::remember_point(const ProcessId& putter, const TimelinePoint& point) {
  value_points_.remember({putter, point}, [this](const ValuePoints::Entry& entry) {
    return has_passed(entry.putter, entry.point) == Reached::yes;
  });
}

void Process::wait_on_host_for(const ProcessId& putter, const TimelinePoint& point) {
  if (putter == id_) return timeline_.wait_on_host_for(point);
  if (ForeignTimeline* timeline = importer_.known_timeline_of(putter)) timeline->wait_on_host_for(point);
}

Tensor Process::order_release(const Tensor& tensor, Stream stream) {
  if (tensor.device() == kCpu || !tensor.block().keeper() || !tensor.block().keeper()->shareable())
    return tensor;
  note_use(tensor.device(), stream);
  return {releases_.order(tensor.block(), tensor.device(), stream), tensor.data(), tensor.layout(),
          tensor.device(), tensor.access()};
}

void Process::settle_streams() noexcept {
  constexpr std::chrono::seconds kPatience{10};
  const Process* process = existing();
  if (process && !process->timeline_.settle(kPatience))
    log_warning(
        "streams of this process still have work to do before tensors that it has handed over; should it "
        "end "
        "now, whoever opens those is told so. Synchronize before the end.");
}

}  // namespace onecopy
