// SPDX-License-Identifier: Apache-2.0
// What is ordered in the streams of devices, of this process or another.
#include "onecopy/os/log.h"
#include "share/process.h"

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
  for (Peer* peer : importer_.peers()) waiting = peer->look_after_waits() || waiting;
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

Tensor Process::order_release(const Tensor& tensor, Stream stream) {
  if (tensor.device() == kCpu || !tensor.block().keeper() || !tensor.block().keeper()->shareable())
    return tensor;
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
