// SPDX-License-Identifier: Apache-2.0
#include "channel/codec/tensor_order.h"

#include <algorithm>
#include <optional>

#include "core/throw_error.h"
#include "device/order/current_streams.h"
#include "device/pinned_ranges.h"
#include "os/log.h"

namespace onecopy {
namespace {

TimelinePoint point_of(const ItemPoint& point) noexcept { return {point.slot, point.value}; }

std::vector<DeviceStream> on_each(const std::vector<Device>& devices, Stream stream) {
  std::vector<DeviceStream> streams;
  streams.reserve(devices.size());
  for (const Device device : devices) streams.push_back({device, stream});
  return streams;
}

/// Returns the streams to mark: the streams of this thread's scope, which have work; without a scope, `stream` on each
/// used device where `stream` has work.
std::vector<DeviceStream> streams_with_work(Session& session, Stream stream) {
  if (const CurrentStreams* scope = CurrentStreams::of_this_thread())
    return {scope->streams().begin(), scope->streams().end()};
  const std::vector<Device> devices = session.streams().used_devices().list();
  if (stream.native && devices.size() > 1)
    throw_error(ErrorCode::invalid_argument,
                "this message has no tensors on devices, and a stream is of one of the {} that this "
                "process has used; put it in the order of the default streams",
                devices.size());
  std::vector<DeviceStream> streams = on_each(devices, stream);
  std::erase_if(streams, [](const DeviceStream& s) {
    return !backend(s.device.type).has_work(s.device.index, s.stream);
  });
  return streams;
}

/// Returns a point in the stream; none if the device fails just now, so that a process can still report the failure, or
/// if the stream is being captured, because its work is not done now.
TimelinePoint mark_or_leave(Session& session, const DeviceStream& at) {
  try {
    return session.streams().mark(at.device, at.stream);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported)
      log_warning("a value was put before the work of a stream on {} could be marked: {}", at.device.str(),
                  error.what());
    return {};
  }
}

/// Returns the getter's streams; empty if there are several devices and only the driver knows to which the stream
/// belongs.
std::optional<std::vector<DeviceStream>> streams_to_wait(Session& session, Stream stream) {
  if (const CurrentStreams* scope = CurrentStreams::of_this_thread())
    return std::vector<DeviceStream>(scope->streams().begin(), scope->streams().end());
  const std::vector<Device> devices = session.streams().used_devices().list();
  if (stream.native && devices.size() > 1) return {};
  return on_each(devices, stream);
}

bool is_captured(const DeviceStream& at) {
  return backend(at.device.type).is_captured(at.device.index, at.stream);
}

/// Makes the streams wait. The host waits only for a captured stream and for a device whose streams cannot wait.
void wait(Session& session, const ProcessId& putter, const TimelinePoint& point,
          const std::optional<std::vector<DeviceStream>>& streams) {
  if (!streams) return session.streams().wait_on_host_for(putter, point);
  for (const DeviceStream& at : *streams)
    if (is_captured(at)) session.streams().wait_on_host_for(putter, point);
    else session.streams().wait_for(putter, point, at.device, at.stream);
}

/// Marks this process's streams that have work.
ItemOrder order_of_values(Session& session, Stream stream) {
  ItemOrder order;
  for (const DeviceStream& at : streams_with_work(session, stream))
    if (const TimelinePoint point = mark_or_leave(session, at))
      order.points.push_back({point.value, point.slot, kNoRow});
  if (order.points.size() > kMaxValuePoints) order.points.resize(kMaxValuePoints);
  order.putter = session.id();
  return order;
}

/// Returns whether the points can be waited for without a question to another process.
bool is_known(Session& session, const ItemOrder& values) {
  return session.streams().used_devices().empty() ||
         session.streams().has_passed(values.putter, point_of(values.points.front())) !=
             StreamOrder::MarkState::unknown;
}

/// Asks the putter for its words. If the putter is gone or does not answer, the getter does not wait for it.
void ask_for(Session& session, const ItemOrder& values) noexcept {
  try {
    for (const Device device : session.streams().used_devices().list())
      session.streams().prepare_wait(values.putter, device);
  } catch (const std::exception& error) {
    log_warning("a value was got, and its putter cannot be asked how far its streams have come: {}",
                error.what());
  }
}

/// Returns whether wait_for_values() might keep the host waiting. REQUIRES: is_known().
bool may_wait_on_host(Session& session, const ItemOrder& values, Stream stream) {
  const auto is_passed = [&](const ItemPoint& point) {
    return session.streams().has_passed(values.putter, point_of(point)) == StreamOrder::MarkState::yes;
  };
  if (std::all_of(values.points.begin(), values.points.end(), is_passed)) return false;
  const auto streams = streams_to_wait(session, stream);
  return !streams || std::any_of(streams->begin(), streams->end(), [&](const DeviceStream& at) {
    return is_captured(at) || session.streams().may_wait_on_host(values.putter, at.device);
  });
}

/// Makes the getter's streams wait: `stream`, or each device's default stream if none is named. The host waits for a
/// captured stream, for streams that cannot wait, and if `stream` may be on one of several devices. Asks no other
/// process.
void wait_for_values(Session& session, const ItemOrder& values, Stream stream) noexcept {
  try {
    for (const ItemPoint& p : values.points) {
      const auto reached = session.streams().has_passed(values.putter, point_of(p));
      if (reached == StreamOrder::MarkState::yes) continue;
      session.streams().remember_point(values.putter, point_of(p));
      if (reached == StreamOrder::MarkState::no && !session.streams().used_devices().empty())
        wait(session, values.putter, point_of(p), streams_to_wait(session, stream));
    }
  } catch (const std::exception& error) {
    log_warning("a value was got before the work of its putter's stream was done: {}", error.what());
  }
}

/// Returns the first tensor on the host that a copy from a card may still be filling; kNoRow if there is none.
std::uint32_t filled_row(std::span<const Tensor> tensors) {
  if (!PinnedRanges::any()) return kNoRow;
  for (std::uint32_t row = 0; row < tensors.size(); ++row)
    if (PinnedRanges::may_be_filled(tensors[row].device(), tensors[row].data(),
                                    std::max<std::size_t>(1, tensors[row].nbytes())))
      return row;
  return kNoRow;
}

/// Adds a point for tensors on the host, for which the host of the getter waits.
void add_points_of_host(ItemOrder& order, std::uint32_t row) {
  for (std::size_t i = 0, count = order.points.size(); i < count; ++i)
    order.points.push_back({order.points[i].value, order.points[i].slot, row});
}

ItemOrder order_of_host(Session& session, std::span<const Tensor> tensors, Stream stream) {
  ItemOrder order = order_of_values(session, stream);
  if (order.points.empty()) return order;
  const std::uint32_t row = filled_row(tensors);
  for (ItemPoint& point : order.points) point.row = row;
  return order;
}

}  // namespace

ItemOrder order_of(Session& session, std::span<const Tensor> tensors, Stream stream) {
  ItemOrder order;
  std::vector<Device> devices;
  for (std::uint32_t row = 0; row < tensors.size(); ++row) {
    const Device device = tensors[row].device();
    if (device == kCpu || std::find(devices.begin(), devices.end(), device) != devices.end()) continue;
    if (stream.native && !devices.empty())
      throw_error(ErrorCode::invalid_argument,
                  "this message has tensors on {} and {}, and a stream is of one device; put "
                  "them as two messages, or in the order of the default streams",
                  devices.front().str(), device.str());
    devices.push_back(device);
    session.streams().note_use(device, stream);
    if (const TimelinePoint point = session.streams().mark(device, stream))
      order.points.push_back({point.value, point.slot, row});
  }
  if (devices.empty()) return order_of_host(session, tensors, stream);
  if (const std::uint32_t row = filled_row(tensors); row != kNoRow) add_points_of_host(order, row);
  order.putter = session.id();
  return order;
}

bool can_be_ordered(Session& session, UnpackedTensors& tensors, Stream stream) {
  const ItemOrder& order = tensors.order;
  if (order.is_of_values()) return is_known(session, order);
  for (const ItemPoint& p : order.points) {
    const auto reached = session.streams().has_passed(order.putter, {p.slot, p.value});
    if (reached == StreamOrder::MarkState::unknown) return false;
    const Device device = tensors.row(p.row).device();
    if (reached == StreamOrder::MarkState::no && backend(device.type).is_captured(device.index, stream))
      throw Error(ErrorCode::unsupported,
                  "this stream is being captured, and the next item of the queue waits for another "
                  "process's stream; take it before the capture, and order each launch");
  }
  return true;
}

bool can_be_ordered_quickly(Session& session, UnpackedTensors& tensors, Stream stream) {
  const ItemOrder& order = tensors.order;
  if (order.is_of_values()) return !may_wait_on_host(session, order, stream);
  for (const ItemPoint& p : order.points)
    if (session.streams().has_passed(order.putter, {p.slot, p.value}) == StreamOrder::MarkState::no &&
        session.streams().may_wait_on_host(order.putter, tensors.row(p.row).device()))
      return false;
  return true;
}

void prepare_order(Session& session, UnpackedTensors& tensors) {
  if (tensors.order.is_of_values()) return ask_for(session, tensors.order);
  for (const ItemPoint& p : tensors.order.points)
    session.streams().prepare_wait(tensors.order.putter, tensors.row(p.row).device());
}

void put_in_order(Session& session, UnpackedTensors& tensors, Stream stream) {
  const ItemOrder& order = tensors.order;
  if (order.is_of_values()) return wait_for_values(session, order, stream);
  for (const ItemPoint& p : order.points)
    if (const Device device = tensors.row(p.row).device(); device == kCpu)
      session.streams().wait_to_read(order.putter, {p.slot, p.value});
    else session.streams().wait_for(order.putter, {p.slot, p.value}, device, stream);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (Tensor& tensor = tensors.row(i); tensor.device() != kCpu)
      tensor = session.streams().order_release(tensor, stream);
}

}  // namespace onecopy
