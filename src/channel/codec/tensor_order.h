// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "channel/codec/item.h"
#include "channel/codec/unpacked_tensors.h"
#include "share/session.h"

/// The order of an item's tensors: a getter's streams use them after the work that the putter's streams had at the put.
/// An item without tensors on devices has the order of value_order.h.
/// Thread safety: all functions may be called concurrently, each call with its own tensors.
namespace onecopy {

/// A point in the stream on each device that has one of the tensors, or else on each that this process has used.
/// Throws invalid_argument for tensors on two devices if a stream is named.
ItemOrder order_of(Session& session, std::span<const Tensor> tensors, Stream stream);

/// Can put_in_order() do without a question to another process? Throws unsupported for a captured stream that would
/// have to wait: the item must stay.
bool can_be_ordered(Session& session, UnpackedTensors& tensors, Stream stream);
/// Can put_in_order() also do without waiting? If streams cannot wait, the host does. REQUIRES: can_be_ordered().
bool can_be_ordered_quickly(Session& session, UnpackedTensors& tensors, Stream stream);
/// Asks the putter for the words of its streams. Throws as connecting does.
void prepare_order(Session& session, UnpackedTensors& tensors);
/// Makes `stream` wait, and the tensors' release follow its later work. Throws the driver's errors. REQUIRES: the
/// caller holds no lock, since the driver may wait for room in the stream.
void put_in_order(Session& session, UnpackedTensors& tensors, Stream stream);

}  // namespace onecopy
