// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>

#include <utility>

#include "binding/gil.h"
#include "binding/kept.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "rpc/python_endpoint.h"
#include "torch/torch.h"

/// The part of PythonEndpoint for callees, whose workers take messages, run functions and answer.
namespace onecopy::python {
namespace {

/// Holds the place of a message in the order of its lane. The end lets the next message begin.
class OrderTicket {
 public:
  OrderTicket(rpc::Node& node, bool is_in_order) : node_(node), is_held_(is_in_order) {}
  OrderTicket& operator=(OrderTicket&&) = delete;
  ~OrderTicket() {
    if (is_held_) node_.end_order(true);
  }
  void end() noexcept {
    if (std::exchange(is_held_, false)) node_.end_order();
  }

 private:
  rpc::Node& node_;
  bool is_held_;
};

/// Returns the error code of a word, or remote_error for other words.
ErrorCode code_named(const std::string& word) {
  for (int i = 0; i <= static_cast<int>(kLastErrorCode); ++i)
    if (word == name(static_cast<ErrorCode>(i))) return static_cast<ErrorCode>(i);
  return ErrorCode::remote_error;
}

/// Connects to a caller, which may call before a worker has taken its greeting.
void open_lane_to(rpc::Node& node, rpc::Member& to, Deadline deadline) {
  if (!to.out.load() && !to.has_ended) without_gil([&] { node.connect(to, deadline); });
}

nb::object owner_of(const rpc::Call& call) {
  void* const owner = call.owner.load();
  return owner ? nb::borrow(static_cast<PyObject*>(owner)) : nb::none();
}

/// Returns whether the type of the result excludes a coroutine, a generator and a Future.
bool is_ordinary(PyObject* result) {
  PyTypeObject* const type = Py_TYPE(result);
  return result == Py_None || type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type ||
         type == &PyTuple_Type || type == &PyList_Type || type == &PyDict_Type || type == &PyBool_Type ||
         type == &PyBytes_Type || torch::is_tensor(result);
}

}  // namespace

void PythonEndpoint::add_worker() noexcept {
  try {
    call_python([&] { agent_.attr("_add_worker")(); });
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("a worker of rpc");
  }
}

void PythonEndpoint::handle(rpc::Work& work) noexcept {
  try {
    drain_decrefs();
    do_work(work);
  } catch (nb::python_error& error) {
    refuse(work, error.value());
    error.discard_as_unraisable("a message of rpc");
  } catch (const std::exception& error) {
    log_warning(std::string("a message of rpc was not handled: ") + error.what());
    refuse(work, nb::str(error.what()));
  }
}

/// Answers a call with an error, which a caller that has an answer already ignores, and fails the value that the call
/// should have made.
void PythonEndpoint::refuse(const rpc::Work& work, nb::handle error) noexcept {
  if (work.kind != rpc::Work::Kind::call) return;
  try {
    call_python(
        [&] { agent_.attr("refuse")(work.from->number(), work.call, error, reference_of(work.context)); });
  } catch (const std::exception& again) {
    log_warning(std::string("a caller was not told that its call failed: ") + again.what());
  }
}

void PythonEndpoint::do_work(rpc::Work& work) {
  if (work.kind == rpc::Work::Kind::call) return serve(work);
  if (work.kind == rpc::Work::Kind::service) return without_gil([&] { node_->serve(work); });
  if (work.kind != rpc::Work::Kind::settle) return take_in_order(work);
  const nb::object owner = owner_of(*work.done);
  if (PyCallable_Check(owner.ptr()) != 0) call_python([&] { owner(); });
  else if (!owner.is_none()) call_python([&] { owner.attr("_settle")(RpcCall(node_, work.done)); });
}

void PythonEndpoint::take_in_order(rpc::Work& work) {
  const OrderTicket ticket(*node_, work.is_in_order);
  const std::uint32_t from = work.from->number();
  if (work.kind == rpc::Work::Kind::member_ended) {
    running.cancel_of(from, work.from->session);
    call_python([&] { agent_.attr("take_end")(from, work.from->session); });
  } else if (work.kind == rpc::Work::Kind::answer) {
    take_answer(work);
  } else if (work.kind == rpc::Work::Kind::note) {
    Body body;
    decode_body(std::move(work.message), work.context, hooks_, agent_, from, false, body);
    call_python([&] { agent_.attr("take_note")(from, body.value); });
  }
}

void PythonEndpoint::take_answer(rpc::Work& work) {
  rpc::Call& call = *work.done;
  rpc::Call answered(call.member(), call.deadline());
  answered.status = work.status;
  answered.answer = std::move(work.message);
  complete_with(work.done, read_answer(answered));
}

/// Completes the Future of a call with an outcome, or stores the outcome in a call whose Future is not known yet.
void PythonEndpoint::complete_with(const rpc::CallRef& call, nb::object outcome) {
  if (const nb::object future = owner_of(*call); !future.is_none()) {
    call_python([&] { future.attr("complete_in_order")(RpcCall(node_, call), outcome); });
    return;
  }
  call->owner = outcome.release().ptr();
  node_->complete(call, rpc::End::answered);
}

/// Returns the arguments of a call of this process to itself, or an invalid object if the call has ended.
nb::object PythonEndpoint::own_arguments(const rpc::Work& work) {
  if (work.from->number() != node_->number()) rpc::refuse_message("has arguments that lie in its sender");
  const rpc::CallRef call = node_->find_call(work.call);
  return nb::steal(call ? static_cast<PyObject*>(call->arguments.exchange(nullptr)) : nullptr);
}

/// Returns the function of an entry, which is looked up again if its name has been rebound.
std::shared_ptr<const PythonEndpoint::LocalFunction> PythonEndpoint::local_function(
    rpc::FunctionEntry& function) {
  auto known = std::static_pointer_cast<const LocalFunction>(function.callable());
  if (known && PyDict_GetItem(known->names.ptr(), known->name.ptr()) == known->function.ptr()) return known;
  const std::string& name = function.name();
  const nb::object found = call_python([&] { return nb::object(agent_.attr("find_target")(name)); });
  auto made = std::make_shared<LocalFunction>();
  made->function = tuple_item(found, 0);
  made->names = tuple_item(found, 1);
  made->name = tuple_item(found, 2);
  made->is_asynchronous = nb::cast<bool>(tuple_item(found, 3));
  made->prepare = tuple_item(found, 4);
  made->kind = name.starts_with('.')       ? LocalFunction::Kind::verb
               : public_name(name) != name ? LocalFunction::Kind::native
                                           : LocalFunction::Kind::function;
  made->times = &served_times.of(public_name(name));
  rpc::Functions::define(function, made);
  return made;
}

/// Serves a call. If the call is late, its caller has given up: only the references in the call are counted, and the value
/// that the call should have made fails, since other members may wait for the value.
void PythonEndpoint::serve(rpc::Work& work) {
  OrderTicket ticket(*node_, work.is_in_order);
  const bool is_late = work.deadline.has_passed();
  if (work.from->has_ended || (is_late && !work.is_in_order)) return;
  const ServedCall now(served);
  const std::uint32_t from = work.from->number();
  std::shared_ptr<const LocalFunction> local;
  Body body;
  CallValues values;
  try {
    if (!is_late) local = local_function(*work.function);
    if (rpc::body_form(work.message.tag) == static_cast<std::uint32_t>(BodyForm::here)) {
      body.value = own_arguments(work);
      if (!body.value.is_valid()) return;
    }
    decode_body(std::move(work.message), work.context, hooks_, agent_, from, !is_late, body);
    if (is_late && work.context.has(rpc::CallContext::kResult))
      refuse(work, nb::str("the call that makes this value arrived after its timeout, and was not run"));
    if (is_late) return;
    values = arguments_of(body.value);
    body.value.reset();
    if (!local->prepare.is_none())
      values.args = call_python([&] { return nb::object(local->prepare(from, values.args)); });
    if (work.context.has(rpc::CallContext::kResult))
      values.cell = call_python(
          [&] { return nb::object(agent_.attr("new_cell")(reference_of(work.context), from)); });
    work.context.parts &= ~rpc::CallContext::kResult;  // run_local() sets the value from here on
  } catch (nb::python_error& error) {
    return refuse(work, error.value());
  }
  ticket.end();
  const ContextScope context(body.autograd);
  run_local(*local, work, values);
}

void PythonEndpoint::run_local(const LocalFunction& local, rpc::Work& work, const CallValues& values) {
  bool has_run = false;
  try {
    nb::object result = local.kind == LocalFunction::Kind::native ? run_native(local, work, values)
                                                                  : run_function(local, work, values);
    has_run = true;
    if (result.is_valid()) answer(*work.from, work.call, result, work.deadline);
  } catch (nb::python_error& error) {  // of the function, or of sending its result
    const nb::object value = nb::borrow(error.value());
    call_python([&] {
      agent_.attr("answer_error")(work.from->number(), work.call, value, static_cast<int>(local.kind),
                                  has_run, values.cell);
    });
  }
}

/// Runs a function and returns its result, or an invalid object for a deferred answer. A native function may return a
/// coroutine or a Future; a function of torch's interface may only if marked as asynchronous. Throws the function's
/// exception.
nb::object PythonEndpoint::run_function(const LocalFunction& local, const rpc::Work& work,
                                        const CallValues& values) {
  const auto finish = [&](const char* how, nb::handle given) {
    const nb::object told = call_python([&] {
      return nb::object(
          agent_.attr(how)(local.function, work.from->number(), work.call, given, values.cell));
    });
    return told.is_none() ? nb::object() : tuple_item(told, 0);
  };
  if (local.kind == LocalFunction::Kind::verb) return finish("serve", values.args);
  PyObject* const kwargs = values.kwargs.is_none() ? nullptr : values.kwargs.ptr();
  nb::object result =
      call_python([&] { return owned(PyObject_Call(local.function.ptr(), values.args.ptr(), kwargs)); });
  const bool is_native = local.kind == LocalFunction::Kind::native;
  if (local.is_asynchronous || (is_native && !is_ordinary(result.ptr()))) return finish("finish", result);
  if (values.cell.is_none()) return result;
  return call_python([&] { return nb::object(agent_.attr("keep")(values.cell, result)); });
}

/// Sends an answer. Throws the exceptions of writing the result.
void PythonEndpoint::answer(rpc::Member& to, std::uint64_t call, nb::handle result, Deadline deadline) {
  if (to.number() == node_->number()) {
    const rpc::CallRef own = node_->find_call(call);
    if (!own) return;  // the caller has given up
    if (own->stays_here) {
      nb::object value = call_python([&] { return nb::object(agent_.attr("unmarked")(result)); });
      node_->take_call(call);
      return complete_with(own, nb::make_tuple(value, nb::none(), nb::tuple()));
    }
  }
  OutgoingRefs refs(agent_, to, true);
  Message message;
  rpc::CallContext context;
  try {
    const PeerCodec& codec = codec_of(to);
    if (codec.is_program) {
      message = encode_for_program(result, refs);
    } else {
      message = encode_body(result, hooks_, codec.of_answers, refs, refs.thread.autograd(), context);
    }
    const bool is_in_order = refs.has_references();
    open_lane_to(*node_, to, deadline);
    put_in_order(to, message, [&](Stream stream) {
      node_->answer(to, call, rpc::Status::value, std::move(message), is_in_order, stream, deadline,
                    context);
    });
  } catch (const Error&) {  // the caller has ended, or this process leaves
    return refs.take_back();
  } catch (...) {
    refs.take_back();
    throw;
  }
  refs.sent();
}

void PythonEndpoint::fail(std::uint32_t to, std::uint64_t call, nb::handle kind, const std::string& text,
                          const std::string& code) {
  rpc::Member& caller = member(to);
  OutgoingRefs refs(agent_, caller, true);
  Message message = rpc::encode_failure(code_named(code), text);
  try {
    rpc::append_class(message, encode_body(kind, hooks_, codec_of(caller).of_answers, refs).data);
  } catch (nb::python_error& error) {  // the class has no name
    if (kind.is(PyExc_RuntimeError)) throw;
    return fail(to, call, PyExc_RuntimeError, text, code);
  }
  try {
    open_lane_to(*node_, caller, kForever);
    put_in_order(caller, message, [&](Stream stream) {
      node_->answer(caller, call, rpc::Status::failure, std::move(message), false, stream);
    });
  } catch (const Error&) {  // the caller has ended, or this process leaves
  }
}

}  // namespace onecopy::python
