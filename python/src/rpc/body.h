// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "binding/device.h"
#include "binding/gil.h"
#include "binding/module.h"
#include "onecopy/channel/queue.h"
#include "rpc/giving.h"
#include "rpc/member.h"
#include "rpc/message.h"
#include "rpc/value_codec.h"
#include "value/values.h"

/// Python values as bodies of the messages of rpc.
/// Thread safety: all functions are called with the GIL held.
namespace onecopy::python {

/// How the body of a message is written, in its tag. Programs in C++ read and write the first form alone.
enum class BodyForm : std::uint32_t {
  value = rpc::kPlainBody,  ///< a value
  extended = 5,             ///< a value; its extension; u32 size of that
  failure = 6,              ///< (class, text) of an exception
};

/// The Python functions that make the parts of a message that C++ does not know.
struct Hooks {
  nb::object reduce, rebuild;  ///< see EncodeOptions and DecodeOptions
};

/// What goes with a value where it is needed: (context id, record, reference), each of them or None.
struct Extension {
  nb::object context = nb::none();    ///< of autograd; its id crosses
  nb::object record = nb::none();     ///< of the tensors that were sent in the context
  nb::object reference = nb::none();  ///< to the result of the call
  bool is_empty() const { return context.is_none() && reference.is_none(); }
};

/// Writes `value`. Within a context of autograd records the tensors as sent there. Throws TypeError for a value that cannot
/// cross.
Message encode_body(nb::handle value, const Hooks& hooks, const Receiver& receiver, Giving& giving,
                    Extension extension = {});
/// Writes a value to a program in C++, which takes plain values and tensors of the CPU. False for any other value.
bool encode_for_program(nb::handle value, Message& message, TensorCounts& counts);

/// A value that came.
struct Body {
  nb::object value;
  Extension extension;  ///< read first: it is there if reading the value throws
  bool is_failure = false;
  std::vector<nb::object> on_cards;  ///< its tensors that are not on the host
};
/// Reads a body, in the order of the current streams. Its tensors become part of the graph of the context that they came
/// in. `makes_context`: makes a context that is not there. Throws bad_handle for a body that no member writes.
void decode_body(Message&& message, const Hooks& hooks, nb::handle agent, std::uint32_t sender,
                 bool makes_context, Body& body);

/// The arguments of a call.
struct CallValues {
  nb::object args;    ///< a tuple
  nb::object kwargs;  ///< a dict, or None
  nb::object trace;   ///< a str in a native call that another call made, whose trace it has; else None
};
/// Throws bad_handle for another value, since the interpreter relies on these types.
CallValues arguments_of(nb::handle value);

/// Puts `message` into a lane to `to` by `put(Stream)`, in the order of the program's current streams. Without the GIL
/// where putting may have to ask another process, or to wait for room.
template <class Put>
void put_in_order(const rpc::Member& to, const Message& message, Put&& put) {
  const Stream stream = stream_of(message.tensors);
  const std::vector<DeviceStream> at_work = streams_to_come_after(message.tensors);
  const CurrentStreams in_order(at_work);
  if (message.tensors.empty() && at_work.empty() && !to.may_hold_up()) put(stream);
  else without_gil([&] { put(stream); });
}

}  // namespace onecopy::python
