// SPDX-License-Identifier: Apache-2.0
#include "channel/codec/tensor_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "channel/codec/value_order.h"
#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"

namespace onecopy {

namespace {

/// The first tensor of the host that a copy from a card may still be filling; kNoRow if there is none.
std::uint32_t filled_row(std::span<const Tensor> tensors) {
  if (!PinnedRanges::any()) return kNoRow;
  for (std::uint32_t row = 0; row < tensors.size(); ++row)
    if (PinnedRanges::may_be_filled(tensors[row].device(), tensors[row].data(),
                                    std::max<std::size_t>(1, tensors[row].nbytes())))
      return row;
  return kNoRow;
}

/// The host waits for points of tensors of the host, which name the first of these.
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
  const auto is_on_host = [](const Tensor& tensor) { return tensor.device() == kCpu; };
  if (session.streams().used_devices().empty() && std::all_of(tensors.begin(), tensors.end(), is_on_host))
    return order;
  std::vector<Device> devices;
  for (std::uint32_t row = 0; row < tensors.size(); ++row) {
    const Device device = tensors[row].device();
    if (device == kCpu || std::find(devices.begin(), devices.end(), device) != devices.end()) continue;
    if (stream.native && !devices.empty())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("this message has tensors on {} and {}, and a stream is of one device; put "
                              "them as two messages, or in the order of the default streams",
                              devices.front().str(), device.str()));
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
