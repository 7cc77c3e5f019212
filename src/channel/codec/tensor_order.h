// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "channel/codec/item.h"
#include "onecopy/memory/tensor.h"
#include "share/session.h"

/// The order of items: a getter's streams use the tensors after the work that was in the putter's streams at the put.
///
/// An item without tensors on devices is an item of values: a getter's work after the get runs after the work that was
/// in the putter's streams at the put, on every device whose memory one of the two has shared or opened. The item is
/// delivered at once, even if the work is never done.
///
/// Thread safety: all functions may be called concurrently, each call with its own tensors.
namespace onecopy {

/// The tensors that an item's rows name, each with a claim of this process, and the order that came with them.
///
/// Thread safety: none.
struct UnpackedTensors {
  Tensor first;  ///< not in the vector, so that a single tensor takes no memory
  std::vector<Tensor> others;
  ItemOrder order;

  void clear() noexcept {
    if (first) first.release();
    others.clear();
    order.points.clear();
  }
  void add(Tensor&& tensor) {
    if (!first) first = std::move(tensor);
    else others.push_back(std::move(tensor));
  }
  Tensor& row(std::size_t i) { return i == 0 ? first : others[i - 1]; }
  std::size_t size() const noexcept { return first ? 1 + others.size() : 0; }
};

/// Returns a point in the stream on each device that has one of the tensors, or else on each device that this process
/// has used and that has work. In the first case `stream` is on the tensors' device. Throws invalid_argument for
/// tensors on two devices, or for no tensors on devices and several used devices, if a stream is named. REQUIRES:
/// a tensor is on a device, or this process has used one.
///
/// The function is not inlined, since most puts need no order.
[[gnu::noinline]] ItemOrder order_of(Session& session, std::span<const Tensor> tensors, Stream stream);

/// Returns whether put_in_order() needs no question to another process. Throws unsupported for a captured stream that
/// would have to wait: the item must stay.
bool can_be_ordered(Session& session, UnpackedTensors& tensors, Stream stream);
/// Returns whether put_in_order() does not make the host wait, which it does for streams that cannot wait. REQUIRES:
/// can_be_ordered().
bool can_be_ordered_quickly(Session& session, UnpackedTensors& tensors, Stream stream);
/// Asks the putter for the words of its streams. Throws as connecting does.
void prepare_order(Session& session, UnpackedTensors& tensors);
/// Makes `stream` wait for the order, and the release of the tensors wait for later work in `stream`. Throws the
/// driver's errors. REQUIRES: the caller holds no lock, since the driver may wait for room in the stream.
void put_in_order(Session& session, UnpackedTensors& tensors, Stream stream);

}  // namespace onecopy
