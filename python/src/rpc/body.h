// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "binding/device.h"
#include "binding/gil.h"
#include "binding/module.h"
#include "onecopy/channel/queue.h"
#include "rpc/member.h"
#include "rpc/message.h"
#include "rpc/outgoing_refs.h"
#include "rpc/value_codec.h"
#include "value/values.h"

/// The bodies of the messages of rpc, written from Python values.
/// Thread safety: all functions are called with the GIL held.
namespace onecopy::python {

/// The form of the body of a message, which its tag names. Programs in C++ read and write `value` only.
enum class BodyForm : std::uint32_t {
  value = rpc::kPlainBody,           ///< a value
  failure = rpc::kFailureWithClass,  ///< the text of an exception, and its class
  here = 7,  ///< an empty body of a call to this process itself, whose arguments lie with the call
};

/// The Python functions that make the parts of a message that C++ does not know.
struct Hooks {
  nb::object reduce, rebuild, classes;  ///< see EncodeOptions and DecodeOptions
};

/// Writes `value`. Records the tensors as sent in `autograd`, which is a context of distributed autograd or None, and
/// adds that context and the record to `context`. Throws TypeError for a value that cannot be sent.
Message encode_body(nb::handle value, const Hooks& hooks, const Receiver& receiver, OutgoingRefs& refs,
                    nb::handle autograd, rpc::CallContext& context);
/// Adds the id of the distributed autograd context `autograd` to `context`.
void add_context(nb::handle autograd, rpc::CallContext& context);
/// Returns the tag of a body.
constexpr std::uint32_t tag_of(BodyForm form) noexcept {
  return static_cast<std::uint32_t>(form) << rpc::kBodyShift;
}
/// Returns the reference that a call makes to its result, as (member, number), or None.
nb::object reference_of(const rpc::CallContext& context);
/// Writes a value outside of any context.
Message encode_body(nb::handle value, const Hooks& hooks, const Receiver& receiver, OutgoingRefs& refs);
/// Writes a value for a program in C++, which takes plain values and tensors of the CPU. Returns false for any other
/// value.
bool encode_for_program(nb::handle value, Message& message, TensorCounts& counts);
/// Writes a value for a program in C++. Throws TypeError for a value that such a program does not take.
Message encode_for_program(nb::handle value, OutgoingRefs& refs);

/// A received value.
struct Body {
  nb::object value;
  nb::object autograd = nb::none();  ///< the context of distributed autograd
  bool is_failure = false;
  std::vector<nb::object> on_cards{};  ///< the tensors of the value that are not on the host
};
/// Reads a body into `body`, in the order of the current streams, and attaches its tensors to the graph of the context
/// that the message names. `makes_context` makes a missing context. If `body.value` is set, the message came from this
/// process itself, and only the context is read. Throws bad_handle for a malformed body.
void decode_body(Message&& message, const rpc::CallContext& context, const Hooks& hooks, nb::handle agent,
                 std::uint32_t sender, bool makes_context, Body& body);

/// The arguments of a call.
struct CallValues {
  nb::object args;    ///< a tuple
  nb::object kwargs;  ///< a dict, or None
  nb::object cell =
      nb::none();  ///< the place of the result at its owner for a call that makes a reference, or None
};
/// Returns the arguments in `value`. Throws bad_handle for other types, on which the interpreter relies.
CallValues arguments_of(nb::handle value);

/// Calls `put(Stream)`, which puts `message` into a lane to `to`, in the order of the program's current streams.
/// Releases the GIL if `put` may have to ask another process or wait for room.
template <class Put>
void put_in_order(const rpc::Member& to, const Message& message, Put&& put) {
  if (message.tensors.empty() && !to.may_hold_up() && current_streams().empty()) return put(Stream());
  const Departure departure(message.tensors);
  if (message.tensors.empty() && !departure.needs_a_device && !to.may_hold_up())
    return put(departure.stream);
  without_gil([&] { put(departure.stream); });
}

}  // namespace onecopy::python
