// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>

#include <string_view>
#include <utility>

#include "binding/gil.h"
#include "binding/kept.h"
#include "onecopy/core/error.h"
#include "rpc/python_endpoint.h"
#include "rpc/times.h"

/// The part of PythonEndpoint for callers, which sends arguments and reads answers.
namespace onecopy::python {
namespace {

constexpr const char* kGradients = ".gradients";
constexpr std::array<std::string_view, 4> kNamings{"torch", "native", "program",
                                                   "stream"};  ///< the names of PythonEndpoint::Naming
constexpr const char* kApply = ".apply";  ///< calls its first argument, a function without a name

void drop_python(void* object) noexcept { decref_later(static_cast<PyObject*>(object)); }

const char* code_of(rpc::End end) {
  if (end == rpc::End::late) return name(ErrorCode::timeout);
  return name(end == rpc::End::member_ended ? ErrorCode::peer_died : ErrorCode::closed);
}

nb::object points_of(nb::handle agent, const std::vector<nb::object>& on_cards) {
  if (on_cards.empty()) return nb::tuple();
  return call_python([&] { return nb::object(agent.attr("points_behind")(list_of(on_cards))); });
}

}  // namespace

nb::object pack_arguments(nb::handle args, nb::handle kwargs) {
  const bool has_args = !args.is_none(), has_kwargs = !kwargs.is_none();
  if (has_args && !PyTuple_CheckExact(args.ptr()) && !PyList_CheckExact(args.ptr()))
    return pack_arguments(nb::tuple(args), kwargs);
  if (has_kwargs && !PyDict_CheckExact(kwargs.ptr())) {
    nb::dict copy;
    copy.update(nb::borrow<nb::dict>(kwargs));
    return pack_arguments(args, copy);
  }
  nb::object given = has_args ? nb::borrow(args) : nb::object(nb::tuple());
  return nb::make_tuple(std::move(given), kwargs);
}

/// Looks a function up. At the first call, the agent returns (the module's names, the name in the module, the wire
/// name, a check), or None for a function that is sent as a value. Equal strings are one key.
const PythonEndpoint::RemoteFunction& PythonEndpoint::remote_function(nb::handle function, Naming naming) {
  static const RemoteFunction nameless;
  RemoteFunctions& known = remote_functions_.at(static_cast<std::size_t>(naming));
  nb::object key = nb::borrow(function);
  if (PyUnicode_CheckExact(key.ptr())) {
    PyObject* interned = key.release().ptr();
    PyUnicode_InternInPlace(&interned);
    key = nb::steal(interned);
  }
  const auto at = known.find(key.ptr());
  if (at != known.end()) {
    const RemoteFunction& found = at->second;
    if (found.names.is_none() || PyDict_GetItem(found.names.ptr(), found.name.ptr()) == key.ptr())
      return found;
  }
  const char* const how = kNamings.at(static_cast<std::size_t>(naming)).data();
  const nb::object told = call_python([&] { return nb::object(agent_.attr("resolve")(function, how)); });
  if (told.is_none()) return nameless;
  const auto wire_name = nb::cast<std::string>(tuple_item(told, 2));
  if (known.find(key.ptr()) == known.end()) Py_INCREF(key.ptr());
  RemoteFunction& made = known[key.ptr()];
  made = {tuple_item(told, 0), tuple_item(told, 1), tuple_item(told, 3), &node_->functions().of(wire_name),
          &called.of(public_name(wire_name))};
  return made;
}

PythonEndpoint::Request PythonEndpoint::request(rpc::Member& to, const RemoteFunction& remote,
                                                nb::handle function, nb::handle args, nb::handle kwargs,
                                                Deadline deadline) {
  nb::object values = pack_arguments(args, kwargs);
  if (!remote.function)
    return {to, node_->functions().of(kApply),
            nb::make_tuple(nb::make_tuple(function, tuple_item(values, 0), kwargs), nb::none()), deadline};
  if (!remote.check.is_none()) call_python([&] { remote.check(tuple_item(values, 0), kwargs); });
  Request made{to, *remote.function, std::move(values), deadline};
  made.stays_here = remote.names.is_none() && to.number() == node_->number();
  return made;
}

/// Returns the context of a call without the autograd part: the trace of the call that this thread runs, and the
/// reference to the result.
rpc::CallContext PythonEndpoint::context_of(const Request& request, const RunningCall* parent) {
  rpc::CallContext context;
  if (parent) {
    context.parts |= rpc::CallContext::kTrace;
    context.trace = parent->root();
  }
  if (request.reference.is_none()) return context;
  context.parts |= rpc::CallContext::kResult;
  context.result = {nb::cast<std::uint64_t>(nb::object(request.reference[1])),
                    nb::cast<std::uint32_t>(nb::object(request.reference[0]))};
  return context;
}

/// Sends a call. Throws Error if the call could not be sent, and the exceptions of writing its values.
rpc::CallRef PythonEndpoint::send(const Request& request) {
  rpc::Member& to = request.to;
  if (!to.out.load()) without_gil([&] { node_->connect(to, request.deadline); });
  OutgoingRefs refs(agent_, to, request.is_result);
  Message message;
  rpc::CallContext context = context_of(request, refs.thread.running);
  rpc::CallRef call;
  nb::object arguments;
  const nb::object autograd = refs.thread.autograd();
  try {
    const PeerCodec& codec = codec_of(to);
    if (request.stays_here) {
      arguments = call_python([&] { return nb::object(agent_.attr("unmarked")(request.values)); });
      message.tag = tag_of(BodyForm::here);
      if (!autograd.is_none()) add_context(autograd, context);
    } else if (codec.is_program) {
      if (!request.reference.is_none())
        call_python([&] { agent_.attr("member")(to.number()).attr("refuse_program")(); });
      message = encode_for_program(request.values, refs);
    } else {
      message = encode_body(request.values, hooks_, request.is_result ? codec.of_answers : codec.of_calls,
                            refs, autograd, context);
    }
    // The order lets a note follow the calls before it: the note may release a value that a call needs.
    const bool is_in_order = request.is_in_order || refs.has_references() || !autograd.is_none();
    put_in_order(to, message, [&](Stream stream) {
      rpc::Node::CallRequest outgoing{std::move(message), request.function, is_in_order,    stream, nullptr,
                                      &drop_python,       context,          arguments.ptr()};
      call = node_->call(to, std::move(outgoing), request.deadline);
    });
    arguments.release();  // the call owns the arguments
  } catch (...) {
    refs.take_back();
    throw;
  }
  refs.sent();
  return call;
}

rpc::CallRef PythonEndpoint::send_or_raise(const Request& request, double seconds) {
  try {
    return send(request);
  } catch (const Error& error) {
    raise(agent_.attr("end_error")(name(error.code()), error.what(), request.to.number(), seconds));
  }
}

/// Sends a call, and gives the call, or the error of sending, to the request's future. Returns the number of the call,
/// or 0.
std::uint64_t PythonEndpoint::send_for(const Request& request, double seconds) {
  try {
    static PyObject* const name = PyUnicode_InternFromString("_call");
    const rpc::CallRef sent = send(request);
    const nb::object call = nb::cast(RpcCall(node_, sent));
    if (PyObject_SetAttr(request.future.ptr(), name, call.ptr()) != 0) throw nb::python_error();
    return sent->number;
  } catch (const Error& error) {
    const nb::object reason =
        agent_.attr("end_error")(name(error.code()), error.what(), request.to.number(), seconds);
    request.future.attr("complete")(nb::none(), reason);
    return 0;
  }
}

nb::object PythonEndpoint::wait_and_take(const rpc::CallRef& call, double seconds) {
  try {
    wait_for(*node_, call);
  } catch (...) {
    node_->end_call(call, rpc::End::cancelled);
    throw;
  }
  return result(call, seconds);
}

/// Returns (value, error, points). A worker may have read the answer in its order already.
nb::object PythonEndpoint::read_answer(rpc::Call& call) {
  nb::object owner = nb::steal(static_cast<PyObject*>(call.owner.exchange(nullptr)));
  if (owner.is_valid() && PyTuple_CheckExact(owner.ptr())) return owner;
  Message answer = std::move(call.answer);
  Body body;
  try {
    if (call.status == rpc::Status::failure && rpc::body_form(answer.tag) == 0)
      rpc::throw_failure(std::move(answer));  // the failure of a program in C++
    const rpc::CallContext context = rpc::take_context(answer);
    decode_body(std::move(answer), context, hooks_, agent_, call.member(), false, body);
  } catch (const Error& error) {
    return nb::make_tuple(nb::none(), agent_.attr("error_named")(name(error.code()), error.what()),
                          nb::tuple());
  } catch (nb::python_error& error) {
    return nb::make_tuple(nb::none(), error.value(), nb::tuple());
  }
  if (!body.is_failure) return nb::make_tuple(body.value, nb::none(), points_of(agent_, body.on_cards));
  return nb::make_tuple(nb::none(), agent_.attr("exception_of")(body.value), nb::tuple());
}

nb::object PythonEndpoint::outcome(const rpc::CallRef& call, double seconds) {
  if (call->end == rpc::End::answered) return read_answer(*call);
  const nb::object error = agent_.attr("end_error")(code_of(call->end), "", call->member(), seconds);
  return nb::make_tuple(nb::none(), error, nb::tuple());
}

/// Returns the result of an ended call. Reads most answers, which are values on the host, without calling Python code.
nb::object PythonEndpoint::result(const rpc::CallRef& call, double seconds) {
  const bool is_value = call->end == rpc::End::answered && !call->owner.load() &&
                        call->status == rpc::Status::value &&
                        rpc::body_form(call->answer.tag) == static_cast<std::uint32_t>(BodyForm::value);
  if (is_value) {
    Body body;
    const rpc::CallContext context = rpc::take_context(call->answer);
    decode_body(std::move(call->answer), context, hooks_, agent_, call->member(), false, body);
    return std::move(body.value);
  }
  const nb::object found = outcome(call, seconds);
  if (const nb::object error = tuple_item(found, 1); !error.is_none()) raise(error);
  if (const nb::object points = tuple_item(found, 2); nb::len(points) != 0)
    agent_.attr("wait_for_points")(points);
  return tuple_item(found, 0);
}

// --- what Python calls

nb::object PythonEndpoint::call(nb::handle to, nb::handle function, nb::handle args, nb::handle kwargs,
                                nb::handle timeout, bool is_native) {
  rpc::Member& member = member_for(to);
  if (is_native) return call_native(member, function, args, kwargs, timeout);
  const double seconds = seconds_of(timeout, usual_timeout);
  const Request made = request(member, remote_function(function, Naming::torch), function, args, kwargs,
                               deadline_after(seconds));
  return wait_and_take(send_or_raise(made, seconds), seconds);
}

void PythonEndpoint::begin(nb::handle to, nb::handle function, nb::handle args, nb::handle kwargs,
                           nb::handle timeout, nb::handle reference, nb::handle future) {
  rpc::Member& member = member_for(to);
  const double seconds = seconds_of(timeout, usual_timeout);
  Request made = request(member, remote_function(function, Naming::torch), function, args, kwargs,
                         deadline_after(seconds));
  made.future = future;
  made.reference = nb::borrow(reference);
  made.is_in_order = !reference.is_none();
  send_for(made, seconds);
}

PythonEndpoint::Request PythonEndpoint::verb_request(std::uint32_t to, std::string_view verb,
                                                     nb::handle args, double seconds) {
  return {member_to_call(to), node_->functions().of(verb), nb::make_tuple(args, nb::none()),
          deadline_after(seconds)};
}

nb::object PythonEndpoint::call_verb(std::uint32_t to, const std::string& verb, nb::handle args,
                                     double seconds, bool is_result) {
  Request made = verb_request(to, verb, args, seconds);
  made.is_result = is_result;
  made.is_in_order = true;
  return wait_and_take(send_or_raise(made, seconds), seconds);
}

void PythonEndpoint::begin_verb(std::uint32_t to, const std::string& verb, nb::handle args, double seconds,
                                bool is_result, nb::handle reference, nb::handle future) {
  Request made = verb_request(to, verb, args, seconds);
  made.is_result = is_result;
  made.is_in_order = true;
  made.reference = nb::borrow(reference);
  made.future = future;
  send_for(made, seconds);
}

rpc::CallRef PythonEndpoint::send_gradients(std::uint32_t to, nb::handle args) {
  const ContextScope no_context{nb::none()};
  Request made = verb_request(to, kGradients, args, 0);
  made.is_result = true;
  return send_or_raise(made, 0);
}

void PythonEndpoint::note(std::uint32_t to, nb::handle verb, nb::handle value) {
  rpc::Member& receiver = member_to_call(to);
  try {
    if (!receiver.out.load()) without_gil([&] { node_->connect(receiver, kForever); });
    OutgoingRefs refs(agent_, receiver, false);
    Message message = encode_body(nb::make_tuple(verb, value), hooks_, codec_of(receiver).of_calls, refs);
    put_in_order(receiver, message,
                 [&](Stream stream) { node_->note(receiver, std::move(message), stream); });
  } catch (const Error&) {  // the member has ended, or this process has left
  }
}

void PythonEndpoint::run_soon(nb::handle task) {
  Py_INCREF(task.ptr());
  node_->end_call(node_->begin_here(kForever, task.ptr(), &drop_python), rpc::End::cancelled);
}

}  // namespace onecopy::python
