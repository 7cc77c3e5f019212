// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/codec/item.h"
#include "share/session.h"

/// The order of items without tensors on devices: what a getter does after the get comes after the work that the
/// putter's streams had at the put, on every device whose memory either has shared or opened. The item itself is
/// delivered at once, and also when that work is never done.
/// Thread safety: all functions may be called concurrently.
namespace onecopy {

/// Points of this process's streams that have work; none where it has used no device, or all are idle. `stream` is on
/// its one device. Throws invalid_argument when a stream is named and the process has used several devices.
ItemOrder order_of_values(Session& session, Stream stream);

/// Can the points be waited for without a question to another process?
bool is_known(Session& session, const ItemOrder& values);
/// Asks whose words they are; a putter that is gone, or does not answer, is not waited for.
void ask_for(Session& session, const ItemOrder& values) noexcept;
/// Might wait_for_values() keep the host waiting? REQUIRES: is_known().
bool may_wait_on_host(Session& session, const ItemOrder& values, Stream stream);
/// Makes the getter's streams wait: `stream`, or each device's default stream when none is named. The host waits for a
/// stream that is being captured, where streams cannot wait, and when `stream` may be on one of several devices. Asks
/// nobody.
void wait_for_values(Session& session, const ItemOrder& values, Stream stream) noexcept;

}  // namespace onecopy
