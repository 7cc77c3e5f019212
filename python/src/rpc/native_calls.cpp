// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "binding/gil.h"
#include "onecopy/core/error.h"
#include "rpc/python_endpoint.h"
#include "rpc/times.h"

/// The part of PythonEndpoint for native calls: inherited deadlines, cancellation, limits, times and a log.
namespace onecopy::python {

/// A native call of this process that has room, and is listed, timed and logged until it ends. The calls form a linked
/// list.
/// Thread safety: the GIL.
class PendingCall {
 public:
  PendingCall(PythonEndpoint& endpoint, rpc::Member& to, const PythonEndpoint::RemoteFunction& remote,
              double seconds, Deadline deadline)
      : endpoint_(endpoint),
        to_(to),
        function_(public_name(remote.function->name())),
        times_(*remote.times),
        seconds_(seconds),
        deadline_(deadline),
        next_(endpoint.pending_calls_) {
    if (const RunningCall* const parent = RunningCall::current()) root_ = parent->root();
    endpoint_.pending_calls_ = this;
    if (next_) next_->before_ = this;
  }
  PendingCall& operator=(PendingCall&&) = delete;
  ~PendingCall() { leave(false); }

  void wait_for_room() {
    endpoint_.limit.acquire(endpoint_.agent_, to_, deadline_);
    has_room_ = true;
  }
  void sent(std::uint64_t number) {
    number_ = number;
    sent_ns_ = now_ns();
    log("sent");
  }
  void end(bool is_answered) {
    leave(is_answered);
    log(is_answered ? "answered" : "failed");
  }
  PendingCall* next() const noexcept { return next_; }
  double seconds() const noexcept { return seconds_; }
  std::uint64_t number() const noexcept { return number_; }
  /// Returns the name in logs of the call and of the calls that its function makes.
  std::string trace() const {
    const rpc::GroupId root = root_.value_or(rpc::GroupId{number_, endpoint_.node_->number()});
    return endpoint_.trace_of(root.member, root.number);
  }
  nb::dict describe() const {
    return describe_call("made", trace(), std::string(function_), to_.name(), deadline_,
                         {{"made", made_ns_}, {"sent", sent_ns_}});
  }

 private:
  void leave(bool is_answered) noexcept {
    if (!std::exchange(is_listed_, false)) return;
    (before_ ? before_->next_ : endpoint_.pending_calls_) = next_;
    if (next_) next_->before_ = before_;
    times_.add(now_ns() - made_ns_, !is_answered);
    if (has_room_) endpoint_.limit.release(to_.number());
  }
  void log(const char* stage) const {
    if (!endpoint_.is_logged()) return;
    const nb::object member = endpoint_.agent_.attr("get_worker_info")(to_.number());
    endpoint_.agent_.attr("log")("%s: call %s at %s %s", trace(), std::string(function_), member, stage);
  }

  PythonEndpoint& endpoint_;
  rpc::Member& to_;
  const std::string_view function_;
  Histogram& times_;
  const double seconds_;  ///< the timeout of the call
  const Deadline deadline_;
  PendingCall* next_;
  PendingCall* before_ = nullptr;
  std::optional<rpc::GroupId> root_;  ///< the first of the calls that led to this one
  std::uint64_t number_ = 0;
  bool has_room_ = false, is_listed_ = true;
  const std::int64_t made_ns_ = now_ns();
  std::int64_t sent_ns_ = 0;
};

std::pair<double, Deadline> PythonEndpoint::native_deadline(nb::handle timeout) const {
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

std::string PythonEndpoint::trace_of(std::uint32_t caller, std::uint64_t number) {
  return fmt::format("{}.c{}", member(caller).name(), number);
}

/// Lets the agent throw the error for arguments of another type.
void PythonEndpoint::check_arguments(nb::handle args) const {
  if (!args.is_none() && !PyTuple_Check(args.ptr()) && !PyList_Check(args.ptr()))
    agent_.attr("check_arguments")(args);
}

nb::object PythonEndpoint::call_native(rpc::Member& to, nb::handle function, nb::handle args,
                                       nb::handle kwargs, nb::handle timeout) {
  check_arguments(args);
  const RemoteFunction& remote =
      remote_function(function, codec_of(to).is_program ? Naming::program : Naming::native);
  const auto [seconds, deadline] = native_deadline(timeout);
  const Request request = this->request(to, remote, function, args, kwargs, deadline);
  PendingCall entry(*this, to, remote, seconds, deadline);
  rpc::CallRef call;
  try {
    entry.wait_for_room();
    call = send_or_raise(request, seconds);
    entry.sent(call->number);
    nb::object result = wait_and_take(call, seconds);
    entry.end(true);
    return result;
  } catch (...) {  // the callee may stop, since no one waits for the result
    if (call && call->end != rpc::End::answered)
      note(to.number(), nb::str("cancel"), nb::int_(call->number));
    throw;
  }
}

nb::object PythonEndpoint::begin_native(nb::handle to, nb::handle function, nb::handle args,
                                        nb::handle kwargs, nb::handle timeout, nb::handle future,
                                        bool is_stream) {
  check_arguments(args);
  rpc::Member& member = member_for(to);
  const Naming naming = is_stream                     ? Naming::stream
                        : codec_of(member).is_program ? Naming::program
                                                      : Naming::native;
  const RemoteFunction& remote = remote_function(function, naming);
  const auto [seconds, deadline] = native_deadline(timeout);
  Request request = this->request(member, remote, function, args, kwargs, deadline);
  request.future = future;
  auto entry = std::make_unique<PendingCall>(*this, member, remote, seconds, deadline);
  entry->wait_for_room();
  entry->sent(send_for(request, seconds));
  return nb::cast(std::move(entry));
}

nb::list PythonEndpoint::calls() const {
  nb::list found;
  for (const PendingCall* one = pending_calls_; one; one = one->next()) found.append(one->describe());
  found.extend(running.describe());
  return found;
}

void init_native_calls(nb::module_& m) {
  nb::class_<PendingCall>(m, "_NativeCall", "A native call that is under way.")
      .def_prop_ro("seconds", &PendingCall::seconds)
      .def_prop_ro("number", &PendingCall::number)
      .def_prop_ro("trace", &PendingCall::trace)
      .def("end", &PendingCall::end, nb::arg("is_answered"));
}

/// Runs a native function. Throws the function's exception.
nb::object PythonEndpoint::run_native(const LocalFunction& local, const rpc::Work& work,
                                      const CallValues& values) {
  const std::uint32_t from = work.from->number();
  const rpc::GroupId own{work.call, from};
  const nb::object running_call = nb::cast(RunningCall(
      agent_, from, work.from->session, work.call, std::string(public_name(work.function->name())),
      work.deadline, work.context.has(rpc::CallContext::kTrace) ? work.context.trace : own));
  const RunningCall& call = *nb::inst_ptr<RunningCall>(running_call);
  const CallScope scope(running, running_call);
  const bool is_logged = this->is_logged();
  const auto log = [&](const char* stage) {
    if (is_logged)
      agent_.attr("log")("%s: %s for %s %s", call.trace(), call.function(), call.caller(), stage);
  };
  log("begins");
  bool failed = true;
  const auto finish = [&] {
    local.times->add(now_ns() - call.taken_ns(), failed);
    log(failed ? "failed" : "is done");
  };
  try {
    call.check();
    nb::object result = run_function(local, work, values);
    failed = false;
    finish();
    return result;
  } catch (const Error& error) {
    finish();
    raise(agent_.attr("error_named")(onecopy::name(error.code()), error.what()));
  } catch (nb::python_error&) {
    finish();
    throw;
  }
}

}  // namespace onecopy::python
