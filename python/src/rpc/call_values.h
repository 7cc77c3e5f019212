// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "binding/module.h"
#include "onecopy/channel/queue.h"
#include "onecopy/device/stream.h"
#include "rpc/member.h"
#include "rpc/message.h"
#include "value/values.h"

/// Python values as bodies of rpc's messages.
/// Thread safety: all functions are called with the GIL held.
namespace onecopy::python {

/// How the body of a message is written, in its tag: the forms of python-message-v1.md, and one more.
inline constexpr std::uint32_t kPlainCall =
    4;  ///< arguments or result of a plain call: values, and copies of tensors but for marked ones

/// Arguments or result of a call within a context of autograd: (verb, context, record of sent tensors, value).
inline constexpr std::uint32_t kPlainTree = 5;

/// A tuple of plain values and tensors that may be lent, as queues carry it.
Message encode_body(nb::handle value);
nb::object decode_body(Message&& message);

/// Values for a plain call. Tensors of the CPU are copied, and those of cards that the receiver's map has. False when there
/// is something else in the value.
bool encode_plain(nb::handle value, Message& message, TensorCounts* counts = nullptr,
                  const Receiver& receiver = {}, std::uint32_t form = kPlainCall);
/// In the order of the current streams. Throws TypeError for a card that this process has not.
nb::object decode_plain(Message&& message);
/// Of a plain call.
struct CallValues {
  nb::object args;    ///< a tuple
  nb::object kwargs;  ///< a dict, or None
  nb::object trace;   ///< a str in a native call that another one made, whose trace it has; else None
};
/// Throws bad_handle for other values, since the interpreter relies on these types.
CallValues decode_call(Message&& message);

/// Puts `message` into a lane to `to` by `put(Stream)`, in the order of the program's current streams. Without the GIL
/// where putting may have to ask another process, or to wait for room.
template <class Put>
void put_in_order(const rpc::Member& to, const Message& message, Put&& put);

}  // namespace onecopy::python

#include "binding/device.h"
#include "binding/gil.h"

namespace onecopy::python {

template <class Put>
void put_in_order(const rpc::Member& to, const Message& message, Put&& put) {
  const Stream stream = stream_of(message.tensors);
  const std::vector<DeviceStream> at_work = streams_to_come_after(message.tensors);
  const CurrentStreams in_order(at_work);
  if (message.tensors.empty() && at_work.empty() && !to.may_hold_up()) put(stream);
  else without_gil([&] { put(stream); });
}

}  // namespace onecopy::python
