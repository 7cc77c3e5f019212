// SPDX-License-Identifier: Apache-2.0
#include "rpc/running_call.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "binding/gil.h"
#include "core/throw_error.h"
#include "rpc/python_endpoint.h"

namespace onecopy::python {

RunningCall::RunningCall(nb::object agent, std::uint32_t caller, std::uint32_t session,
                         std::uint64_t number, std::string function, Deadline deadline, rpc::GroupId root)
    : agent_(std::move(agent)),
      caller_(caller),
      session_(session),
      number_(number),
      function_(std::move(function)),
      deadline_(deadline),
      root_(root),
      taken_ns_(now_ns()) {}

nb::object RunningCall::caller() const { return agent_.attr("get_worker_info")(caller_); }

nb::object RunningCall::trace() const {
  return agent_.attr("endpoint").attr("trace_of")(root_.member, root_.number);
}

void RunningCall::check() const {
  if (is_cancelled_)
    raise(agent_.attr("error_named")(
        "cancelled", fmt::format("{} was cancelled by {}", function_, nb::str(caller()).c_str())));
  if (!deadline_.has_passed()) return;
  throw_error(ErrorCode::timeout, "{} is {:.3f} s behind the deadline that {} gave", function_,
              static_cast<double>(now_ns() - ns_of(deadline_)) / 1e9, nb::str(caller()).c_str());
}

void RunningCall::cancel() {
  is_cancelled_ = true;
  for (const nb::object& hook : std::exchange(hooks_, {})) hook();
}

void RunningCall::on_cancel(nb::object hook) {
  if (is_cancelled_) hook();
  else hooks_.push_back(std::move(hook));
}

nb::dict describe_call(const char* direction, const std::string& trace, const std::string& function,
                       const std::string& member, Deadline deadline,
                       std::initializer_list<std::pair<const char*, std::int64_t>> stages) {
  const std::int64_t now = now_ns();  // one moment for all ages, so that earlier stages are older
  nb::dict ages, found;
  for (const auto& [stage, when] : stages) {
    if (when == 0) continue;
    ages[stage] = static_cast<double>(now - when) / 1e9;
    found["stage"] = stage;
  }
  found["trace"] = trace;
  found["function"] = function;
  found["member"] = member;
  found["direction"] = direction;
  found["ages"] = ages;
  found["remaining"] = seconds_until(deadline);
  return found;
}

nb::dict RunningCall::describe() const {
  return describe_call("served", nb::cast<std::string>(trace()), function_,
                       nb::cast<std::string>(caller().attr("name")), deadline_,
                       {{"taken", taken_ns_}, {"running", running_ns_}});
}

int RunningCall::traverse(visitproc visit, void* arg) {
  Py_VISIT(agent_.ptr());
  for (const nb::object& hook : hooks_) Py_VISIT(hook.ptr());
  return 0;
}

void RunningCall::clear() {
  agent_.reset();
  hooks_.clear();
}

// --- RunningCalls

void RunningCalls::add(nb::object call) {
  RunningCall& added = *nb::inst_ptr<RunningCall>(call);
  const std::pair key{added.caller_, added.number_};
  calls_.push_back(std::move(call));
  const auto early = std::find(early_.begin(), early_.end(), key);
  if (early == early_.end()) return;
  early_.erase(early);
  added.cancel();
}

void RunningCalls::remove(const RunningCall& call) {
  const auto at = std::find_if(calls_.begin(), calls_.end(), [&](const nb::object& one) {
    return nb::inst_ptr<RunningCall>(one) == &call;
  });
  if (at == calls_.end()) return;
  std::swap(*at, calls_.back());
  calls_.pop_back();
}

void RunningCalls::cancel(std::uint32_t caller, std::uint64_t number) {
  for (const nb::object& one : calls_) {
    RunningCall& call = *nb::inst_ptr<RunningCall>(one);
    if (call.caller_ != caller || call.number_ != number) continue;
    const nb::object kept = one;  // its hooks may remove the call
    return call.cancel();
  }
  early_.emplace_back(caller, number);
  if (early_.size() > kMaxEarly) early_.pop_front();
}

void RunningCalls::cancel_of(std::uint32_t caller, std::uint32_t session) {
  const std::vector<nb::object> calls = calls_;
  for (const nb::object& one : calls)
    if (RunningCall& call = *nb::inst_ptr<RunningCall>(one);
        call.caller_ == caller && call.session_ == session)
      call.cancel();
}

nb::list RunningCalls::describe() const {
  nb::list found;
  const std::vector<nb::object> calls = calls_;
  for (const nb::object& one : calls) found.append(nb::inst_ptr<RunningCall>(one)->describe());
  return found;
}

int RunningCalls::traverse(visitproc visit, void* arg) const {
  for (const nb::object& one : calls_) Py_VISIT(one.ptr());
  return 0;
}

// --- CallScope

CallScope::CallScope(RunningCalls& calls, nb::object call)
    : thread_(this_thread()), calls_(calls), call_(std::move(call)), outer_(thread_.running) {
  RunningCall& running = *nb::inst_ptr<RunningCall>(call_);
  calls_.add(call_);
  thread_.running = &running;
  running.running_ns_ = now_ns();
}

CallScope::~CallScope() {
  thread_.running = outer_;
  calls_.remove(*nb::inst_ptr<RunningCall>(call_));
}

// --- the context of distributed autograd

nb::object swap_context(ThreadState& thread, nb::object now) {
  nb::object before = thread.context ? nb::steal(thread.context) : nb::none();
  thread.context = now.is_none() ? nullptr : now.release().ptr();
  return before;
}

// --- the binding

namespace {

nb::object current_call() {
  RunningCall* const current = RunningCall::current();
  return current ? nb::find(*current) : nb::none();
}

}  // namespace

void init_running_call(nb::module_& m) {
  nb::class_<RunningCall>(m, "_RunningCall", nb::type_slots(gc_slots<RunningCall>),
                          "A call that this process runs.")
      .def_prop_ro("caller", &RunningCall::caller, "The WorkerInfo of the caller.")
      .def_prop_ro("caller_id", &RunningCall::caller_id)
      .def_prop_ro("number", &RunningCall::number)
      .def_prop_ro("function", &RunningCall::function, "The name of the function, as module:name.")
      .def_prop_ro("trace", &RunningCall::trace,
                   "The name of the call in the logs of both sides, and of the calls that it makes.")
      .def_prop_ro(
          "deadline", [](const RunningCall& c) { return to_seconds(c.deadline()); },
          "The deadline as time.monotonic() has it, or None.")
      .def_prop_ro("cancelled", &RunningCall::is_cancelled,
                   "Whether the caller has cancelled the call, does not wait for it, or has ended.")
      .def("remaining", &RunningCall::remaining, "Seconds until the deadline, or None. Negative behind it.")
      .def("check", &RunningCall::check,
           "Raises Cancelled when the caller does not want the result, Timeout behind the deadline.")
      .def("cancel", &RunningCall::cancel, "Marks the call as cancelled.")
      .def("on_cancel", &RunningCall::on_cancel, nb::arg("hook"),
           "Calls the hook when the call is cancelled; at once if it is. The hook must not wait.");
  m.def(
      "_rpc_context", [] { return this_thread().autograd(); },
      "Returns this thread's context of distributed autograd, or None.");
  m.def(
      "_swap_rpc_context",
      [](nb::object context) { return swap_context(this_thread(), std::move(context)); },
      nb::arg("context").none(),
      "Makes a context, or None, the context of this thread. Returns the one before.");
  m.def("_current_call", &current_call,
        "Returns the call that this thread runs for another member; None outside of a call.");
}

}  // namespace onecopy::python
