// SPDX-License-Identifier: Apache-2.0
#include "share/runtime/stream_order.h"

#include <cstdlib>
#include <mutex>

#include "device/order/current_streams.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "share/borrower/peer.h"
#include "share/session.h"

namespace onecopy {
namespace {

void settle_at_exit() {
  if (Session* const session = Session::existing()) session->streams().settle();
}

}  // namespace

StreamOrder::StreamOrder(const ProcessId& self, Peers& peers, EventLoop& loop)
    : self_(self), peers_(peers), releases_(timeline_), looks_(loop, [this] { return poll(); }) {
  timeline_.on_first_mark = [] {
    static std::once_flag once;  // registered after the driver's own handlers, and so run before them
    std::call_once(once, [] { std::atexit(settle_at_exit); });
  };
  timeline_.on_wait = [this] { poll_soon(); };
  releases_.on_wait = [this] { poll_soon(); };
  releases_.on_left = [this] { marking_.request(); };
  releases_.must_not_wait = [&loop] { return loop.runs_here(); };
}

void StreamOrder::wait_for(const ProcessId& maker, const TimelinePoint& point, Device device,
                           Stream stream) {
  if (maker == self_) return timeline_.wait(device, stream, point);
  ForeignTimeline* const timeline = peers_.timeline_of(maker);
  if (!timeline) return;
  timeline->wait(device, stream, point);
  if (!timeline->has_passed(point)) poll_soon();  // see poll_waits()
}

void StreamOrder::poll_soon() noexcept {
  if (!is_asked_.load(std::memory_order_relaxed)) is_asked_ = true;
  looks_.request();
}

/// Looks often while marks are being reached, because a stream that has reached one mark is likely to reach the next
/// soon.
Timer::Pause StreamOrder::poll() {
  constexpr std::chrono::milliseconds kLongestPause{160};
  const bool was_asked = is_asked_.exchange(false);
  const bool waiting = poll_waits();
  const bool at_work = timeline_.poll_devices();
  const std::size_t before = releases_.size();
  const bool releasing = releases_.sweep();
  if (!waiting && !at_work && !releasing) return {};
  const bool is_moving = releasing && releases_.size() < before;
  pause_ = was_asked || is_moving ? Timer::kSoon : std::min(2 * pause_, kLongestPause);
  return pause_;
}

/// Returns whether streams of this process wait for streams of others.
bool StreamOrder::poll_waits() {
  bool waiting = false;
  for (const auto& peer : peers_.list()) waiting = peer->poll_waits() || waiting;
  return waiting;
}

void StreamOrder::prepare_wait(const ProcessId& maker, Device device) {
  if (maker == self_) return;
  ForeignTimeline* const timeline = peers_.timeline_of(maker);
  if (timeline && device != kCpu) timeline->prepare(device);
}

std::vector<TimelinePoint> StreamOrder::mark_work(Stream stream) {
  std::vector<DeviceStream> streams;
  if (const CurrentStreams* scope = CurrentStreams::of_this_thread())
    streams.assign(scope->streams().begin(), scope->streams().end());
  else
    for (const Device device : used_devices_.list()) streams.push_back({device, stream});
  std::vector<TimelinePoint> points;
  for (const DeviceStream& at : streams) {
    if (!backend(at.device.type).has_work(at.device.index, at.stream)) continue;
    try {
      if (const TimelinePoint point = mark(at.device, at.stream)) points.push_back(point);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported)  // a stream that is being captured does no work now
        log_warning("memory is handed over before the work of {} could be marked: {}", at.device.str(),
                    error.what());
    }
  }
  return points;
}

void StreamOrder::wait_to_read(const ProcessId& maker, const TimelinePoint& point) {
  if (maker == self_) {
    if (!timeline_.has_passed(point)) timeline_.wait_on_host_for(point);
    return;
  }
  ForeignTimeline* const timeline = peers_.timeline_of(maker);
  if (timeline && !timeline->has_passed(point)) timeline->wait_on_host_for(point);
}

StreamOrder::MarkState StreamOrder::has_passed(const ProcessId& maker, const TimelinePoint& point) const {
  if (maker == self_) return timeline_.has_passed(point) ? MarkState::yes : MarkState::no;
  const ForeignTimeline* timeline = peers_.known_timeline_of(maker);
  if (!timeline) return MarkState::unknown;
  return timeline->has_passed(point) ? MarkState::yes : MarkState::no;
}

bool StreamOrder::may_wait_on_host(const ProcessId& maker, Device device) const {
  if (maker == self_) return timeline_.may_wait_on_host(device);
  const ForeignTimeline* timeline = peers_.known_timeline_of(maker);
  return !timeline || timeline->may_wait_on_host(device);
}

/// Notes the use of a device. Logs an error of waiting for value points instead of throwing it at a caller that opens a
/// tensor.
void StreamOrder::note_use(Device device, Stream stream) {
  if (device == kCpu || !used_devices_.note(device)) return;
  for (const ValuePoints::Entry& entry : value_points_.all()) {
    try {
      wait_for(entry.putter, entry.point, device, stream);
    } catch (const Error& error) {
      log_warning("{} is used before the work that a value came after is done: {}", device.str(),
                  error.what());
    }
  }
}

void StreamOrder::remember_point(const ProcessId& putter, const TimelinePoint& point) {
  value_points_.remember({putter, point}, [this](const ValuePoints::Entry& entry) {
    return has_passed(entry.putter, entry.point) == MarkState::yes;
  });
}

void StreamOrder::wait_on_host_for(const ProcessId& putter, const TimelinePoint& point) {
  if (putter == self_) return timeline_.wait_on_host_for(point);
  if (ForeignTimeline* timeline = peers_.known_timeline_of(putter)) timeline->wait_on_host_for(point);
}

Tensor StreamOrder::order_release(const Tensor& tensor, Stream stream) {
  if (tensor.device() == kCpu || !tensor.block().group() || !tensor.block().group()->shareable())
    return tensor;
  note_use(tensor.device(), stream);
  return {releases_.order(tensor.block(), tensor.device(), stream), tensor.data(), tensor.layout(),
          tensor.device(), tensor.access()};
}

void StreamOrder::settle() const noexcept {
  constexpr std::chrono::seconds kTimeout{10};
  if (timeline_.settle(kTimeout)) return;
  log_warning(
      "streams of this process still have work to do before tensors that it has handed over; if it ends "
      "now, the processes that open those get an error. Synchronize before the end.");
}

}  // namespace onecopy
