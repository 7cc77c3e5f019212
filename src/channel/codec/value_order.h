// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/codec/item.h"
#include "share/session.h"

/// The order of items without tensors on devices. A getter's work after the get comes after the work that the
/// putter's streams had at the put, on every device whose memory either has shared or opened. The item itself is
/// delivered at once, and also if that work is never done. Thread safety: all functions may be called concurrently.
namespace onecopy {

/// Points of this process's streams that have work; empty if it has used no device, or all are idle. `stream` is on
/// its one device. Throws invalid_argument if a stream is named and the process has used several devices.
ItemOrder order_of_values(Session& session, Stream stream);

/// Can the points be waited for without a question to another process?
bool is_known(Session& session, const ItemOrder& values);
/// Asks the putter for its words; if it is gone, or does not answer, it is not waited for.
void ask_for(Session& session, const ItemOrder& values) noexcept;
/// Might wait_for_values() keep the host waiting? REQUIRES: is_known().
bool may_wait_on_host(Session& session, const ItemOrder& values, Stream stream);
/// Makes the getter's streams wait: `stream`, or each device's default stream if none is named. The host waits for a
/// captured stream, for streams that cannot wait, and if `stream` may be on one of several devices. Asks no other
/// process.
void wait_for_values(Session& session, const ItemOrder& values, Stream stream) noexcept;

}  // namespace onecopy
