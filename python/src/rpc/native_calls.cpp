// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <utility>

#include "binding/gil.h"
#include "onecopy/core/error.h"
#include "rpc/endpoint.h"
#include "rpc/times.h"
#include "torch/torch.h"

/// Calls of the native interface, on both sides: deadlines that travel along, cancelling, limits and times.
namespace onecopy::python {

/// A native call that a thread waits for. Such calls are linked while they live.
class UnderWay {
 public:
  UnderWay(Endpoint& endpoint, const rpc::Member& to, std::string_view function, Deadline deadline)
      : endpoint_(endpoint), to_(to), function_(function), deadline_(deadline), next_(endpoint.under_way_) {
    endpoint_.under_way_ = this;
    if (next_) next_->before_ = this;
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  ~UnderWay() {
    (before_ ? before_->next_ : endpoint_.under_way_) = next_;
    if (next_) next_->before_ = before_;
  }

  void sent(std::uint64_t number, nb::handle trace) noexcept {
    number_ = number;
    trace_ = trace;
    sent_ns_ = now_ns();
  }
  std::int64_t ns() const noexcept { return now_ns() - made_ns_; }
  const UnderWay* next() const noexcept { return next_; }
  /// (member's number, call's number, function, trace or None, seconds at which it was made and sent, deadline)
  nb::object describe() const {
    return nb::make_tuple(to_.number(), number_, nb::str(function_.data(), function_.size()),
                          trace_.is_valid() ? nb::borrow(trace_) : nb::none(),
                          static_cast<double>(made_ns_) / 1e9, static_cast<double>(sent_ns_) / 1e9,
                          to_seconds(deadline_));
  }

 private:
  Endpoint& endpoint_;
  const rpc::Member& to_;
  const std::string_view function_;
  const Deadline deadline_;
  UnderWay* next_;
  UnderWay* before_ = nullptr;
  std::uint64_t number_ = 0;
  nb::handle trace_{};
  const std::int64_t made_ns_ = now_ns();
  std::int64_t sent_ns_ = 0;
};

namespace {

constexpr std::string_view kPrefix = "native ";

/// Room for one call to a member.
class Room {
 public:
  Room(CallLimit& limit, nb::handle agent, const rpc::Member& to, Deadline deadline)
      : limit_(limit), to_(to.number()) {
    limit_.acquire(agent, to, deadline);
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { limit_.release(to_); }

 private:
  CallLimit& limit_;
  const std::uint32_t to_;
};

void check_arguments(nb::handle args) {
  if (args.is_none() || PyTuple_CheckExact(args.ptr()) || PyList_Check(args.ptr()) ||
      PyTuple_Check(args.ptr()))
    return;
  const nb::object text = nb::repr(args);
  throw nb::type_error(("args is a tuple of arguments, not a " +
                        std::string(nb::type_name(args.type()).c_str()) + ": args=(" +
                        std::string(nb::cast<std::string>(text)).substr(0, 60) + ",)")
                           .c_str());
}

/// Returns whether the result is known to be neither a coroutine nor a generator.
bool is_ordinary(PyObject* result) {
  PyTypeObject* const type = Py_TYPE(result);
  return result == Py_None || type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type ||
         type == &PyTuple_Type || type == &PyList_Type || type == &PyDict_Type || type == &PyBool_Type ||
         type == &PyBytes_Type || torch::is_tensor(result);
}

}  // namespace

std::pair<double, Deadline> Endpoint::native_deadline(nb::handle timeout) const {
  const double seconds = timeout.is_none() ? usual_timeout : seconds_of(timeout, -1);
  if (seconds < 0)
    throw nb::value_error("a timeout is a number of seconds, 0 for no limit, and not negative");
  const Deadline own = deadline_after(seconds);
  const RunningCall* const parent = RunningCall::current();
  if (!parent || parent->deadline() == kForever) return {seconds, own};
  parent->check();
  if (own <= parent->deadline()) return {seconds, own};
  return {std::max(static_cast<double>(ns_of(parent->deadline()) - now_ns()) / 1e9, 1e-6),
          parent->deadline()};
}

nb::object Endpoint::call_native(nb::handle to, nb::handle function, nb::handle args, nb::handle kwargs,
                                 nb::handle timeout) {
  rpc::Member& member = member_for(to);
  if (member.number() == node_->number() || is_program(member.number()))
    return nb::borrow(Py_NotImplemented);
  check_arguments(args);
  Callee& known = const_cast<Callee&>(callee(function, "resolve_native", native_callees_));
  if (!known.times) known.times = &called.of(std::string_view(known.wire_name).substr(kPrefix.size()));
  const auto [seconds, deadline] = native_deadline(timeout);
  const std::string_view name = std::string_view(known.wire_name).substr(kPrefix.size());
  Histogram& times = *known.times;
  RunningCall* const parent = RunningCall::current();
  const nb::object trace = parent ? parent->trace() : nb::none();  // of the log alone
  rpc::CallRef call;
  bool failed = true;
  const UnderWay entry_guard(*this, member, name, deadline);
  UnderWay& entry = const_cast<UnderWay&>(entry_guard);
  const auto observe = [&] { times.add(entry.ns(), failed); };
  try {
    const Room room(limit, agent_, member, deadline);
    const Request request{member, known.wire_name, values_of_call(args, kwargs), deadline};
    call = send_or_raise(request, seconds);
    entry.sent(call->number, trace);
    const bool is_logged = nb::cast<bool>(nb::object(agent_.attr("is_logged")()));
    if (is_logged) agent_.attr("log_call")("called", trace, call->number, name, member.number());
    nb::object result = wait_and_take(call, seconds);
    failed = false;
    observe();
    if (is_logged) agent_.attr("log_call")("answered", trace, call->number, name, member.number());
    return result;
  } catch (const Error&) {
    observe();
    throw;
  } catch (nb::python_error&) {
    observe();
    // The result is not wanted: the callee may stop.
    if (call && call->end != rpc::End::answered)
      note(member.number(), nb::str("cancel"), nb::int_(call->number));
    throw;
  }
}

void Endpoint::begin_native(std::uint32_t to, const std::string& name, nb::handle args, nb::handle kwargs,
                            double seconds, nb::handle future) {
  check_arguments(args);
  const std::string wire_name = is_program(to) ? name : std::string(kPrefix) + name;
  Request request{member_to_call(to), wire_name, values_of_call(args, kwargs), deadline_after(seconds)};
  request.future = future;
  send_for(request, seconds);
}

nb::list Endpoint::calls_made() const {
  nb::list found;
  for (const UnderWay* one = under_way_; one; one = one->next()) found.append(one->describe());
  return found;
}

/// Throws the function's exception. An invalid object stands for an answer that comes later.
nb::object Endpoint::serve_native(const Target& target, rpc::Work& work, const CallValues& values) {
  const std::uint32_t from = work.from->number();
  const std::string& wire_name = work.function->text;
  const rpc::GroupId own{work.call, from};
  const nb::object running_call = nb::cast(
      RunningCall(agent_, from, work.from->session, work.call, wire_name.substr(kPrefix.size()),
                  work.deadline, work.context.has(rpc::CallContext::kTrace) ? work.context.trace : own));
  const RunningCall& call = *nb::inst_ptr<RunningCall>(running_call);
  const CallScope scope(running, running_call);
  const bool is_logged = nb::cast<bool>(nb::object(agent_.attr("is_logged")()));
  if (is_logged) agent_.attr("log_served")(running_call, "begins");
  bool failed = true;
  const auto finish = [&] {
    target.times->add(now_ns() - call.taken_ns(), failed);
    if (is_logged) agent_.attr("log_served")(running_call, failed ? "failed" : "is done");
  };
  try {
    call.check();
    PyObject* const kwargs = values.kwargs.is_none() ? nullptr : values.kwargs.ptr();
    nb::object result = call_python(
        [&] { return nb::steal(PyObject_Call(target.function.ptr(), values.args.ptr(), kwargs)); });
    if (!result.is_valid()) throw nb::python_error();
    if (!is_ordinary(result.ptr())) {
      const nb::object found = call_python(
          [&] { return nb::object(agent_.attr("finish_native")(target.function, running_call, result)); });
      result = found.is_none() ? nb::object() : nb::borrow(NB_TUPLE_GET_ITEM(found.ptr(), 0));
    }
    failed = false;
    finish();
    return result;
  } catch (const Error& error) {
    finish();
    const nb::object reason = agent_.attr("error_named")(onecopy::name(error.code()), error.what());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(reason.ptr())), reason.ptr());
    throw nb::python_error();
  } catch (nb::python_error&) {
    finish();
    throw;
  }
}

}  // namespace onecopy::python
