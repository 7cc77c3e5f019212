// SPDX-License-Identifier: Apache-2.0
#include "rpc/rpc_node.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "binding/bytes.h"
#include "binding/gil.h"
#include "binding/kept.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "rpc/call_values.h"
#include "rpc/context.h"
#include "rpc/failure.h"

namespace onecopy::python {
namespace {

/// The name of every call that is not plain: its body says the rest.
constexpr const char* kGeneral = "python";

void drop_python(void* object) noexcept { drop_soon(static_cast<PyObject*>(object)); }

Deadline deadline_from(nb::handle seconds) {
  if (seconds.is_none()) return kForever;
  const double value = PyFloat_AsDouble(seconds.ptr());
  if (value == -1.0 && PyErr_Occurred()) throw nb::python_error();
  if (value != value) throw nb::value_error("a deadline is a time, not NaN");
  if (value > 9e9) return kForever;  // beyond what nanoseconds can say
  return TimePoint(std::chrono::nanoseconds(static_cast<std::int64_t>(value * 1e9)));
}

nb::object to_seconds(Deadline deadline) {
  if (deadline == kForever) return nb::none();
  return nb::float_(static_cast<double>(deadline.at().time_since_epoch().count()) / 1e9);
}

/// Of a thread in RpcNode::run(): what it can do while a call of its own function is under way.
struct Helper {
  rpc::Node& node;
  std::function<void(rpc::Work&)> handle;
  int depth = 0;  ///< functions that it runs within each other
};
thread_local Helper* t_helper = nullptr;

/// Work that no other thread is left for, since their functions wait for calls, too.
void help(rpc::Node& node) {
  constexpr int kMostWithin = 16;
  rpc::Work work;
  if (!t_helper || &t_helper->node != &node || t_helper->depth == kMostWithin || !node.try_help(work))
    return;
  ++t_helper->depth;
  t_helper->handle(work);
  --t_helper->depth;
}

void wait_for(rpc::Node& node, const rpc::CallRef& call) {
  while (!without_gil([&] { return node.wait(call, kForever); })) {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    drop_unneeded();
    help(node);
  }
}

/// The code of that word; remote_error for all others.
ErrorCode code_named(const std::string& word) {
  for (int i = 0; i <= static_cast<int>(ErrorCode::system); ++i)
    if (word == name(static_cast<ErrorCode>(i))) return static_cast<ErrorCode>(i);
  return ErrorCode::remote_error;
}

void count_plain(rpc::Member& to, const TensorCounts& counts, const Message& message) noexcept {
  to.count(rpc::Route::inlined, counts.inlined);
  to.count(rpc::Route::lease, counts.lent);
  to.count(rpc::Route::copy, message.tensors.size() - counts.lent);
}

nb::object owner_of(const rpc::Call& call) {
  void* const owner = call.owner.load();
  return owner ? nb::borrow(static_cast<PyObject*>(owner)) : nb::none();
}

nb::object not_plain() { return nb::borrow(Py_NotImplemented); }

/// Lets the next message that is handled in order begin.
class Turn {
 public:
  Turn(rpc::Node& node, bool is_in_order) : node_(node), has_turn_(is_in_order) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (has_turn_) node_.end_order(true);
  }
  void end() noexcept {
    if (std::exchange(has_turn_, false)) node_.end_order();
  }

 private:
  rpc::Node& node_;
  bool has_turn_;
};

}  // namespace

// --- RpcCall

void RpcCall::wait() {
  if (!call_->is_done()) wait_for(*node_, call_);
}

bool RpcCall::is_done() {
  return call_->is_done() || without_gil([&] { return node_->has_ended(call_); });
}

/// The owner may be there already: the Future, or an outcome.
bool RpcCall::want(nb::handle future) {
  if (call_->is_done()) return false;
  void* none = nullptr;
  if (call_->owner.compare_exchange_strong(none, future.ptr())) Py_INCREF(future.ptr());
  return node_->want(call_);
}

bool RpcCall::end() { return node_->end_call(call_, rpc::End::cancelled); }

void RpcCall::complete() { node_->complete(call_, rpc::End::answered); }

nb::object RpcCall::take_answer() {
  const nb::object owner = nb::steal(static_cast<PyObject*>(call_->owner.exchange(nullptr)));
  if (owner.is_valid() && PyTuple_CheckExact(owner.ptr())) return nb::make_tuple(nb::none(), owner, false);
  Message answer = std::move(call_->answer);
  if (call_->status == rpc::Status::failure) rpc::throw_failure(answer);  // of a program in C++
  const bool is_plain = rpc::body_form(answer.tag) == kPlainCall;
  const bool has_devices = std::any_of(answer.tensors.begin(), answer.tensors.end(),
                                       [](const Tensor& tensor) { return !is_on_host(tensor); });
  const nb::object value = is_plain ? decode_plain(std::move(answer)) : decode_body(std::move(answer));
  return nb::make_tuple(is_plain, value, has_devices);
}

// --- RpcNode

/// The function here for a name in calls of other members.
struct RpcNode::Target {
  /// How it is called: its result is the answer; it is a Future of the answer, and Python code waits for it; or it gets the
  /// call itself, as (caller, call, deadline, arguments, keyword arguments, trace or None), and gives None if it answers
  /// itself, or else a tuple of the answer.
  enum class Kind : std::uint8_t { result, future, told };
  nb::object function, names, name;
  Kind kind = Kind::result;
};

RpcNode::RpcNode(const std::string& name, std::uint32_t number)
    : node_(without_gil([&] {
        return std::make_shared<rpc::Node>(rpc::NodeOptions{name, number});
      })) {}

RpcNode::~RpcNode() {
  for (const auto& [function, plain] : plain_) Py_DECREF(function);
  drop_without_gil([this] { node_.reset(); });
}

nb::bytes RpcNode::address() { return to_python(node_->address().to_bytes()); }

nb::object RpcNode::join(nb::bytes address) {
  const rpc::Address where = rpc::Address::from_bytes(span_of(address));
  without_gil([&] { node_->join(where); });
  return nb::make_tuple(where.name, where.number, where.pid);
}

bool RpcNode::is_far(std::uint32_t number) { return !member(number).shares_memory; }

void RpcNode::connect(std::uint32_t number, nb::handle deadline) {
  rpc::Member& to = member(number);
  const Deadline until = deadline_from(deadline);
  without_gil([&] { node_->connect(to, until); });
}

void RpcNode::count_route(std::uint32_t to, const std::string& route) {
  const auto at = std::find(rpc::kRouteNames.begin(), rpc::kRouteNames.end(), route);
  if (at == rpc::kRouteNames.end()) throw Error(ErrorCode::invalid_argument, "there is no such route");
  member(to).count(static_cast<rpc::Route>(at - rpc::kRouteNames.begin()), 1);
}

nb::dict RpcNode::routes(std::uint32_t to) {
  nb::dict found;
  const auto& counts = member(to).counters.routes;
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (const std::uint64_t tensors = counts[i].load(std::memory_order_relaxed))
      found[rpc::kRouteNames[i]] = tensors;
  return found;
}

void RpcNode::set_number_of(const std::string& name, nb::handle number) { numbers_[name.c_str()] = number; }

nb::object RpcNode::number_of(nb::handle name) const {
  PyObject* const found = PyDict_GetItem(numbers_.ptr(), name.ptr());
  return found ? nb::borrow(found) : nb::none();
}

void RpcNode::set_devices(std::uint32_t of, const Cards& of_calls, const Cards& of_answers,
                          bool numbers_agree, bool is_automatic) {
  PyTypeObject* const marked = !member(of).shares_memory || marked_type.is_none()
                                   ? nullptr
                                   : reinterpret_cast<PyTypeObject*>(marked_type.ptr());
  receivers_[of] = {{{of_calls, numbers_agree, is_automatic}, marked},
                    {{of_answers, numbers_agree, is_automatic}, marked}};
}

rpc::Member& RpcNode::member(std::uint32_t number) {
  rpc::Member* const found = node_->find(number);
  if (!found) throw Error(ErrorCode::invalid_argument, "there is no such member of the group");
  return *found;
}

nb::object RpcNode::call(std::uint32_t to, nb::handle value, nb::handle deadline, nb::handle future,
                         Form form) {
  rpc::Member& callee = member(to);
  const Deadline until = deadline_from(deadline);
  if (!callee.out.load()) without_gil([&] { node_->connect(callee, until); });
  Message message;
  if (!encode(callee, value, form, message)) return not_plain();
  const bool has_future = !future.is_none();
  rpc::CallRef call;
  put_in_order(callee, message, [&](Stream stream) {
    // The order keeps notes, and calls that depend on them, behind the calls before.
    rpc::Node::CallRequest outgoing{
        std::move(message), kGeneral, true, stream, has_future ? future.ptr() : nullptr, &drop_python};
    call = node_->call(callee, std::move(outgoing), until, has_future);
  });
  if (has_future) Py_INCREF(future.ptr());
  return nb::cast(RpcCall(node_, std::move(call)));
}

/// False for a value that is not plain although `form` says so.
bool RpcNode::encode(rpc::Member& to, nb::handle value, Form form, Message& message) {
  if (form == Form::general) return message = encode_body(value), true;
  const Receivers known = receivers_[to.number()];
  const Receiver& receiver = form == Form::plain_call ? known.of_calls : known.of_answers;
  TensorCounts counts;
  if (!encode_plain(value, message, &counts, receiver, kPlainTree)) return false;
  count_plain(to, counts, message);
  return true;
}

nb::object RpcNode::call_program(std::uint32_t to, const std::string& function, nb::handle values,
                                 nb::handle deadline, nb::handle future) {
  rpc::Member& callee = member(to);
  const Deadline until = deadline_from(deadline);
  Message message;
  TensorCounts counts;
  if (!encode_plain(values, message, &counts))
    throw nb::type_error("only plain values and tensors of the CPU cross to a program in C++");
  if (!callee.out.load()) without_gil([&] { node_->connect(callee, until); });
  count_plain(callee, counts, message);
  rpc::CallRef call;
  put_in_order(callee, message, [&](Stream stream) {
    rpc::Node::CallRequest outgoing{std::move(message), function,    false, stream,
                                    future.ptr(),       &drop_python};
    call = node_->call(callee, std::move(outgoing), until, true);
  });
  Py_INCREF(future.ptr());
  return nb::cast(RpcCall(node_, std::move(call)));
}

void RpcNode::answer_program(std::uint32_t to, std::uint64_t call, const std::string& code,
                             const std::string& text) {
  rpc::Member& caller = member(to);
  Message message = rpc::encode_failure(code_named(code), text);
  without_gil([&] { node_->answer(caller, call, rpc::Status::failure, std::move(message)); });
}

nb::object RpcNode::begin_here(nb::handle deadline, nb::handle future) {
  Py_INCREF(future.ptr());
  return nb::cast(RpcCall(node_, node_->begin_here(deadline_from(deadline), future.ptr(), &drop_python)));
}

void RpcNode::note(std::uint32_t to, nb::handle value) {
  rpc::Member& receiver = member(to);
  if (!receiver.out.load()) without_gil([&] { node_->connect(receiver, kForever); });
  Message message = encode_body(value);
  put_in_order(receiver, message,
               [&](Stream stream) { node_->note(receiver, std::move(message), stream); });
}

bool RpcNode::answer(std::uint32_t to, std::uint64_t call, nb::handle value, bool is_in_order, Form form) {
  rpc::Member& caller = member(to);
  Message message;
  if (!encode(caller, value, form, message)) return false;
  put_in_order(caller, message, [&](Stream stream) {
    node_->answer(caller, call, rpc::Status::value, std::move(message), is_in_order, stream);
  });
  return true;
}

// --- plain calls, in the caller

void RpcNode::learn(nb::handle function, const std::string& wire_name, nb::handle names, nb::handle name,
                    nb::handle check) {
  if (knows(function)) return;
  Py_INCREF(function.ptr());
  plain_.emplace(function.ptr(), Plain{nb::borrow(names), nb::borrow(name), nb::borrow(check), wire_name});
}

/// None also when the name stands for something else by now.
const RpcNode::Plain* RpcNode::plain(nb::handle function) const {
  const auto at = plain_.find(function.ptr());
  if (at == plain_.end()) return nullptr;
  const Plain& found = at->second;
  return PyDict_GetItem(found.names.ptr(), found.name.ptr()) == function.ptr() ? &found : nullptr;
}

rpc::Member* RpcNode::member_for(nb::handle to) {
  nb::object number;
  if (PyUnicode_CheckExact(to.ptr())) {
    PyObject* const found = PyDict_GetItem(numbers_.ptr(), to.ptr());
    if (!found) return nullptr;
    number = nb::borrow(found);
  } else if (to.type().ptr() == member_type.ptr()) {
    number = nb::getattr(to, "id");
  } else {
    number = nb::borrow(to);
  }
  if (!PyLong_CheckExact(number.ptr())) return nullptr;
  const long value = PyLong_AsLong(number.ptr());
  if (value < 0) return PyErr_Clear(), nullptr;
  rpc::Member* const member = node_->find(static_cast<std::uint32_t>(value));
  return member && member->out.load() && !member->has_ended ? member : nullptr;
}

namespace {

/// (arguments, keyword arguments or None), and a trace that is not None; none if they are neither a tuple or list, nor a dict.
nb::object values_of_call(nb::handle args, nb::handle kwargs, nb::handle trace) {
  const bool has_args = !args.is_none(), has_kwargs = !kwargs.is_none();
  if (has_args && !PyTuple_CheckExact(args.ptr()) && !PyList_CheckExact(args.ptr())) return {};
  if (has_kwargs && !PyDict_CheckExact(kwargs.ptr())) return {};
  nb::object given = has_args ? nb::borrow(args) : nb::object(nb::tuple());
  if (trace.is_none()) return nb::make_tuple(std::move(given), kwargs);
  return nb::make_tuple(std::move(given), kwargs, trace);
}

/// How long a call may take; negative: as long as usual. 0: no limit.
double seconds_of(nb::handle timeout, double usual) {
  if (timeout.is_none()) return usual;
  const double seconds = PyFloat_AsDouble(timeout.ptr());
  if (seconds == -1.0 && PyErr_Occurred()) throw nb::python_error();
  if (seconds != seconds) throw nb::value_error("timeout is not a number");
  return seconds < 0 ? usual : seconds;
}

Deadline deadline_after_seconds(double seconds) {
  if (seconds == 0 || seconds > 1e9) return kForever;
  return Deadline::after(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
}

}  // namespace

/// None when it is no plain call, or cannot be sent: then another way says why. Throws timeout when another host has not
/// taken it in time.
rpc::CallRef RpcNode::send_plain(rpc::Member*& to, nb::handle whom, nb::handle function,
                                 const nb::object& values, double seconds) {
  const Plain* const known = has_rpc_context() ? nullptr : plain(function);
  to = known ? member_for(whom) : nullptr;
  if (!to || !values.is_valid()) return {};
  if (!known->check.is_none()) call_python([&] { known->check(values[0], values[1]); });
  return send_named(*to, known->wire_name, values, receivers_[to->number()].of_calls,
                    deadline_after_seconds(seconds));
}

/// As send_plain().
rpc::CallRef RpcNode::send_named(rpc::Member& to, const std::string& name, const nb::object& values,
                                 Receiver receiver, Deadline deadline) {
  Message message;
  TensorCounts counts;
  if (!encode_plain(values, message, &counts, receiver)) return {};
  count_plain(to, counts, message);
  rpc::CallRef call;
  try {
    put_in_order(to, message, [&](Stream stream) {
      rpc::Node::CallRequest outgoing{std::move(message), name, false, stream, nullptr, &drop_python};
      call = node_->call(to, std::move(outgoing), deadline, false);
    });
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timeout) throw;  // another way would take as long again
    return {};
  }
  return call;
}

nb::object RpcNode::wait_plain(nb::handle agent, const rpc::CallRef& call, double seconds) {
  try {
    wait_for(*node_, call);
  } catch (...) {
    node_->end_call(call, rpc::End::cancelled);
    throw;
  }
  const bool is_plain = call->end == rpc::End::answered && rpc::body_form(call->answer.tag) == kPlainCall;
  if (is_plain) return decode_plain(std::move(call->answer));
  if (void* const outcome = call->owner.exchange(nullptr))  // a worker has decoded it, in its order
    return call_python([&] { return agent.attr("_result")(nb::steal(static_cast<PyObject*>(outcome))); });
  return call_python([&] { return agent.attr("_result_of")(RpcCall(node_, call), seconds); });
}

nb::object RpcNode::call_plain(nb::handle agent, nb::handle to, nb::handle function, nb::handle args,
                               nb::handle kwargs, nb::handle timeout) {
  rpc::Member* callee = nullptr;
  const double seconds = seconds_of(timeout, usual_timeout);
  rpc::CallRef call;
  try {
    call = send_plain(callee, to, function, values_of_call(args, kwargs, nb::none()), seconds);
  } catch (const Error& error) {
    call_python([&] { agent.attr("_raise_late")(seconds, error.what()); });
  }
  return call ? wait_plain(agent, call, seconds) : not_plain();
}

nb::object RpcNode::begin_plain(nb::handle to, nb::handle function, nb::handle args, nb::handle kwargs,
                                nb::handle timeout, nb::handle trace) {
  rpc::Member* callee = nullptr;
  rpc::CallRef call = send_plain(callee, to, function, values_of_call(args, kwargs, trace),
                                 seconds_of(timeout, usual_timeout));
  return call ? nb::cast(RpcCall(node_, std::move(call))) : not_plain();
}

rpc::CallRef RpcNode::send_answering(std::uint32_t to, const std::string& function, nb::handle args) {
  rpc::Member* const member = to == node_->number() ? nullptr : node_->find(to);
  if (!member || !member->out.load() || member->has_ended) return {};
  return send_named(*member, function, values_of_call(args, nb::none(), nb::none()),
                    receivers_[to].of_answers, kForever);
}

nb::object RpcNode::call_answering(nb::handle agent, std::uint32_t to, const std::string& function,
                                   nb::handle args) {
  const rpc::CallRef call = send_answering(to, function, args);
  return call ? wait_plain(agent, call, 0) : not_plain();
}

nb::object RpcNode::begin_answering(std::uint32_t to, const std::string& function, nb::handle args) {
  rpc::CallRef call = send_answering(to, function, args);
  return call ? nb::cast(RpcCall(node_, std::move(call))) : not_plain();
}

// --- workers

void RpcNode::run(nb::handle agent) {
  Helper helper{*node_, [this, agent](rpc::Work& work) { handle(agent, work); }};
  t_helper = &helper;
  rpc::Work work;
  while (without_gil([&] { return node_->next(work); })) {
    if (node_->wants_worker()) call_python([&] { agent.attr("_add_worker")(); });
    handle(agent, work);
    work = {};
    drop_unneeded();
  }
  t_helper = nullptr;
}

void RpcNode::handle(nb::handle agent, rpc::Work& work) noexcept {
  try {
    do_work(agent, work);
  } catch (nb::python_error& error) {
    const std::string text = error.what();
    error.restore();
    PyErr_WriteUnraisable(agent.ptr());
    refuse(agent, work, text);
  } catch (const std::exception& error) {
    log_warning(std::string("a message of rpc was not handled: ") + error.what());
    refuse(agent, work, error.what());
  }
}

/// A caller that has had its answer drops this one.
void RpcNode::refuse(nb::handle agent, const rpc::Work& work, const std::string& text) noexcept {
  if (work.kind != rpc::Work::Kind::call || work.call == 0) return;
  try {
    call_python([&] { agent.attr("_refuse_text")(work.call, work.from->number(), text); });
  } catch (const std::exception& error) {
    log_warning(std::string("a caller was not told that its call failed: ") + error.what());
  }
}

void RpcNode::do_work(nb::handle agent, rpc::Work& work) {
  const bool is_plain = work.kind == rpc::Work::Kind::call && !work.is_in_order &&
                        rpc::body_form(work.message.tag) == kPlainCall;
  if (is_plain) return serve_plain(agent, work);
  if (work.kind == rpc::Work::Kind::greeting) return without_gil([&] { node_->take_greetings(); });
  if (work.kind == rpc::Work::Kind::settle) {
    const nb::object future = owner_of(*work.done);
    if (!future.is_none()) call_python([&] { future.attr("_settle")(RpcCall(node_, work.done)); });
    return;
  }
  take(agent, work);
}

/// Messages in order: each is decoded before the next one is.
void RpcNode::take(nb::handle agent, rpc::Work& work) {
  Turn turn(*node_, work.is_in_order);
  const std::uint32_t from = work.from->number();
  if (work.kind == rpc::Work::Kind::member_ended) {
    call_python([&] { agent.attr("_take_end")(from, work.from->has_left.load()); });
  } else if (work.kind == rpc::Work::Kind::note) {
    const nb::object value = decode_body(std::move(work.message));
    call_python([&] { agent.attr("_take_note")(from, value); });
  } else if (work.kind == rpc::Work::Kind::answer) {
    take_answer(agent, work);
  } else {
    nb::object request;
    {
      const nb::object value = decode_body(std::move(work.message));
      request = call_python(
          [&] { return agent.attr("_take_call")(work.call, from, to_seconds(work.deadline), value); });
    }
    turn.end();
    if (!request.is_none()) call_python([&] { request(); });
  }
}

/// A Future that is known gets its outcome here; others find it with the call. Python code may make it known meanwhile.
void RpcNode::take_answer(nb::handle agent, rpc::Work& work) {
  const nb::object value = decode_body(std::move(work.message));
  const nb::object before = owner_of(*work.done);
  nb::object outcome =
      call_python([&] { return agent.attr("_outcome_of")(value, work.from->number(), before); });
  if (const nb::object future = owner_of(*work.done); !future.is_none()) {
    call_python([&] { future.attr("complete_in_order")(RpcCall(node_, work.done), outcome); });
    return;
  }
  work.done->owner = outcome.release().ptr();
  node_->complete(work.done, rpc::End::answered);
}

/// Looked up again when the name stands for something else by now.
RpcNode::Target& RpcNode::target(nb::handle agent, rpc::Name& name) {
  auto* known = static_cast<Target*>(name.function.load());
  if (known && PyDict_GetItem(known->names.ptr(), known->name.ptr()) == known->function.ptr())
    return *known;
  const nb::tuple found =
      nb::cast<nb::tuple>(call_python([&] { return agent.attr("_find_target")(name.text); }));
  const auto kind = static_cast<Target::Kind>(nb::cast<int>(nb::object(found[3])));
  targets_.push_back(std::make_unique<Target>(Target{found[0], found[1], found[2], kind}));
  name.function = targets_.back().get();
  return *targets_.back();
}

void RpcNode::serve_plain(nb::handle agent, rpc::Work& work) {
  if (work.from->has_ended || work.deadline.has_passed()) return;
  const ServedCall now(served);
  const std::uint32_t from = work.from->number();
  nb::object result;
  Target* at = nullptr;
  try {
    at = &target(agent, *work.function);
  } catch (nb::python_error& error) {
    const nb::object value = nb::borrow(error.value());
    call_python([&] { agent.attr("_refuse")(work.call, from, value); });
    return;
  }
  Target& found = *at;
  try {
    const CallValues values = decode_call(std::move(work.message));
    const nb::object function = found.function;
    if (found.kind == Target::Kind::told) return serve_told(agent, work, function, values);
    if (found.kind == Target::Kind::future) {
      call_python(
          [&] { agent.attr("_serve_plain")(work.call, from, function, values.args, values.kwargs); });
      return;
    }
    PyObject* const given[] = {values.args.ptr(), values.kwargs.is_none() ? nullptr : values.kwargs.ptr()};
    result = call_python([&] { return nb::steal(PyObject_Call(function.ptr(), given[0], given[1])); });
    if (!result.is_valid()) throw nb::python_error();
  } catch (nb::python_error& error) {
    const nb::object value = nb::borrow(error.value());
    call_python([&] { agent.attr("_answer_raised")(work.call, from, value); });
    return;
  }
  answer_plain(agent, work, result);
}

void RpcNode::serve_told(nb::handle agent, rpc::Work& work, nb::handle function, const CallValues& values) {
  const nb::object outcome = call_python([&] {
    return function(work.from->number(), work.call, to_seconds(work.deadline), values.args, values.kwargs,
                    values.trace);
  });
  if (!outcome.is_none()) answer_plain(agent, work, nb::borrow(nb::cast<nb::tuple>(outcome)[0]));
}

void RpcNode::answer_plain(nb::handle agent, rpc::Work& work, nb::handle result) {
  const Receiver receiver = receivers_[work.from->number()].of_answers;
  Message message;
  TensorCounts counts;
  if (!encode_plain(result, message, &counts, receiver)) {
    call_python([&] { agent.attr("_answer_plain")(work.call, work.from->number(), result); });
    return;
  }
  count_plain(*work.from, counts, message);
  put_in_order(*work.from, message, [&](Stream stream) {
    node_->answer(*work.from, work.call, rpc::Status::value, std::move(message), false, stream,
                  work.deadline);
  });
}

void RpcNode::stop() {
  without_gil([&] { node_->stop(); });
}

// NOLINTNEXTLINE(readability-function-size): a list of definitions with their docstrings
void init_rpc(nb::module_& m) {
  init_rpc_context(m);
  m.def("_rpc_host", &rpc::this_host,
        "A number of this boot and these namespaces: processes of one reach each other's memory.");
  m.def(
      "_decode_call",
      [](nb::bytes data) {
        const ByteSpan bytes = span_of(data);
        Message message;
        message.data.assign(bytes.begin(), bytes.end());
        const CallValues values = decode_call(std::move(message));
        return nb::make_tuple(values.args, values.kwargs);
      },
      nb::arg("data"), "The arguments of a plain call, as its callee reads them.");
  m.def(
      "_encode_call",
      [](nb::tuple args) -> nb::object {
        Message message;
        if (!encode_plain(nb::make_tuple(args, nb::none()), message) || !message.tensors.empty())
          return nb::none();
        return to_python(message.data);
      },
      nb::arg("args"), "For _decode_call(); None for what does not go as bytes alone.");
  nb::class_<RpcCall>(m, "_RpcCall")
      .def_prop_ro("number", &RpcCall::number)
      .def_prop_ro("done", &RpcCall::is_done)
      .def_prop_ro("end_kind", &RpcCall::how_it_ended)
      .def_prop_ro("member", &RpcCall::member)
      .def("wait", &RpcCall::wait)
      .def("want", &RpcCall::want, nb::arg("future"))
      .def("end", &RpcCall::end)
      .def("complete", &RpcCall::complete)
      .def("take_answer", &RpcCall::take_answer);
  nb::class_<RpcNode>(m, "_RpcNode", "This process as a member of a group; see src/rpc/node.h.")
      .def(nb::init<const std::string&, std::uint32_t>(), nb::arg("name"), nb::arg("number"))
      .def("address", &RpcNode::address)
      .def("join", &RpcNode::join, nb::arg("address"))
      .def("is_far", &RpcNode::is_far, nb::arg("number"))
      .def("connect", &RpcNode::connect, nb::arg("number"), nb::arg("deadline").none())
      .def("count_route", &RpcNode::count_route, nb::arg("to"), nb::arg("route"))
      .def("routes", &RpcNode::routes, nb::arg("to"))
      .def("set_number_of", &RpcNode::set_number_of, nb::arg("name"), nb::arg("number"))
      .def("number_of", &RpcNode::number_of, nb::arg("name"))
      .def("set_devices", &RpcNode::set_devices, nb::arg("of"), nb::arg("of_calls"), nb::arg("of_answers"),
           nb::arg("numbers_agree"), nb::arg("is_automatic"))
      .def(
          "call",
          [](RpcNode& n, std::uint32_t to, nb::handle value, nb::handle deadline, nb::handle future,
             int form) { return n.call(to, value, deadline, future, static_cast<RpcNode::Form>(form)); },
          nb::arg("to"), nb::arg("value"), nb::arg("deadline").none(), nb::arg("future").none(),
          nb::arg("form") = 0)
      .def("begin_here", &RpcNode::begin_here, nb::arg("deadline").none(), nb::arg("future"))
      .def("call_program", &RpcNode::call_program, nb::arg("to"), nb::arg("function"), nb::arg("values"),
           nb::arg("deadline").none(), nb::arg("future"))
      .def("answer_program", &RpcNode::answer_program, nb::arg("to"), nb::arg("call"), nb::arg("code"),
           nb::arg("text"))
      .def("note", &RpcNode::note, nb::arg("to"), nb::arg("value"))
      .def(
          "answer",
          [](RpcNode& n, std::uint32_t to, std::uint64_t call, nb::handle value, bool is_in_order,
             int form) { return n.answer(to, call, value, is_in_order, static_cast<RpcNode::Form>(form)); },
          nb::arg("to"), nb::arg("call"), nb::arg("value"), nb::arg("is_in_order"), nb::arg("form") = 0)
      .def("learn", &RpcNode::learn, nb::arg("function"), nb::arg("wire_name"), nb::arg("names"),
           nb::arg("name"), nb::arg("check").none())
      .def("knows", &RpcNode::knows, nb::arg("function").none())
      .def("call_plain", &RpcNode::call_plain, nb::arg("agent"), nb::arg("to").none(),
           nb::arg("function").none(), nb::arg("args").none(), nb::arg("kwargs").none(),
           nb::arg("timeout").none())
      .def("begin_plain", &RpcNode::begin_plain, nb::arg("to").none(), nb::arg("function").none(),
           nb::arg("args").none(), nb::arg("kwargs").none(), nb::arg("timeout").none(),
           nb::arg("trace").none() = nb::none())
      .def("call_answering", &RpcNode::call_answering, nb::arg("agent"), nb::arg("to"), nb::arg("function"),
           nb::arg("args"))
      .def("begin_answering", &RpcNode::begin_answering, nb::arg("to"), nb::arg("function"),
           nb::arg("args"))
      .def("look", [](RpcNode& n) { without_gil([&] { n.node().look_once(); }); })
      .def("run", &RpcNode::run, nb::arg("agent"))
      .def("stop", &RpcNode::stop)
      .def("has_left",
           [](RpcNode& n, std::uint32_t number) {
             const rpc::Member* member = n.node().find(number);
             return member && member->has_left;
           })
      .def_prop_ro("calls_under_way", [](RpcNode& n) { return n.node().calls_under_way(); })
      .def_prop_ro("idle_workers", [](RpcNode& n) { return n.node().idle_workers(); })
      .def_prop_ro("serving", [](const RpcNode& n) { return n.served.count(); })
      .def("begin_serving", [](RpcNode& n) { n.served.begin(); })
      .def("end_serving", [](RpcNode& n) { n.served.end(); })
      .def(
          "wait_for_served",
          [](RpcNode& n, int most, double seconds) {
            const auto left = std::chrono::duration<double>(seconds);
            const auto until = std::chrono::steady_clock::now() +
                               std::chrono::duration_cast<std::chrono::nanoseconds>(left);
            return without_gil([&] { return n.served.wait_for(most, until); });
          },
          nb::arg("most"), nb::arg("seconds"))
      .def_rw("timeout", &RpcNode::usual_timeout)
      .def_rw("member_type", &RpcNode::member_type, nb::arg().none())
      .def_rw("marked_type", &RpcNode::marked_type, nb::arg().none());
}

}  // namespace onecopy::python
