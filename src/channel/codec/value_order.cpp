// SPDX-License-Identifier: Apache-2.0
#include "channel/codec/value_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "device/order/current_streams.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "share/session.h"

namespace onecopy {
namespace {

TimelinePoint point_of(const ItemPoint& point) noexcept { return {point.slot, point.value}; }

std::vector<DeviceStream> on_each(const std::vector<Device>& devices, Stream stream) {
  std::vector<DeviceStream> streams;
  streams.reserve(devices.size());
  for (const Device device : devices) streams.push_back({device, stream});
  return streams;
}

/// The streams of the scope have work: the caller names no others.
std::vector<DeviceStream> streams_with_work(Session& session, Stream stream) {
  if (const CurrentStreams* scope = CurrentStreams::of_this_thread())
    return {scope->streams().begin(), scope->streams().end()};
  const std::vector<Device> devices = session.streams().used_devices().list();
  if (stream.native && devices.size() > 1)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("this message has no tensors on devices, and a stream is of one of the {} that this "
                    "process has used; put it in the order of the default streams",
                    devices.size()));
  std::vector<DeviceStream> streams = on_each(devices, stream);
  std::erase_if(streams, [](const DeviceStream& s) {
    return !backend(s.device.type).has_work(s.device.index, s.stream);
  });
  return streams;
}

/// A device that fails just now must not keep a process from reporting that; work of a captured stream is not done
/// now.
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

/// The streams of the getter. Empty if one of several devices has the stream, and only the driver knows which.
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

/// Only a captured stream and a device whose streams cannot wait make the host wait.
void wait(Session& session, const ProcessId& putter, const TimelinePoint& point,
          const std::optional<std::vector<DeviceStream>>& streams) {
  if (!streams) return session.streams().wait_on_host_for(putter, point);
  for (const DeviceStream& at : *streams)
    if (is_captured(at)) session.streams().wait_on_host_for(putter, point);
    else session.streams().wait_for(putter, point, at.device, at.stream);
}

}  // namespace

ItemOrder order_of_values(Session& session, Stream stream) {
  ItemOrder order;
  if (session.streams().used_devices().empty()) return order;
  for (const DeviceStream& at : streams_with_work(session, stream))
    if (const TimelinePoint point = mark_or_leave(session, at))
      order.points.push_back({point.value, point.slot, kNoRow});
  if (order.points.size() > kMostValuePoints) order.points.resize(kMostValuePoints);
  order.putter = session.id();
  return order;
}

bool is_known(Session& session, const ItemOrder& values) {
  return session.streams().used_devices().empty() ||
         session.streams().has_passed(values.putter, point_of(values.points.front())) !=
             StreamOrder::MarkState::unknown;
}

void ask_for(Session& session, const ItemOrder& values) noexcept {
  try {
    for (const Device device : session.streams().used_devices().list())
      session.streams().prepare_wait(values.putter, device);
  } catch (const std::exception& error) {
    log_warning("a value was got, and its putter cannot be asked how far its streams have come: {}",
                error.what());
  }
}

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

}  // namespace onecopy
