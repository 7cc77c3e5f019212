// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "binding/gil.h"
#include "onecopy/core/error.h"
#include "rpc/endpoint.h"
#include "rpc/times.h"

/// The additions of the native interface to a call: deadlines that travel along, cancelling, limits, times and a log.
namespace onecopy::python {

/// A native call that a thread waits for: has room, and is listed, timed and logged. Such calls are linked while they live.
class UnderWay {
 public:
  UnderWay(Endpoint& endpoint, const Endpoint::Request& request, Histogram& times)
      : endpoint_(endpoint), request_(request), times_(times), next_(endpoint.under_way_) {
    if (const RunningCall* const parent = RunningCall::current()) root_ = parent->root();
    endpoint_.under_way_ = this;
    if (next_) next_->before_ = this;
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  ~UnderWay() {
    (before_ ? before_->next_ : endpoint_.under_way_) = next_;
    if (next_) next_->before_ = before_;
    times_.add(now_ns() - made_ns_, has_failed_);
    if (has_room_) endpoint_.limit.release(request_.to.number());
  }

  void wait_for_room() {
    endpoint_.limit.acquire(endpoint_.agent_, request_.to, request_.deadline);
    has_room_ = true;
  }
  void sent(std::uint64_t number) {
    number_ = number;
    sent_ns_ = now_ns();
    log("called");
  }
  void answered() {
    has_failed_ = false;
    log("answered");
  }
  const UnderWay* next() const noexcept { return next_; }
  /// Returns (member's number, call's number, function, trace, seconds at which it was made and sent, deadline).
  nb::object describe() const {
    return nb::make_tuple(to(), number_, function(), trace(), static_cast<double>(made_ns_) / 1e9,
                          static_cast<double>(sent_ns_) / 1e9, to_seconds(request_.deadline));
  }

 private:
  std::uint32_t to() const noexcept { return request_.to.number(); }
  std::string function() const { return std::string(public_name(request_.function.name())); }
  nb::object trace() const {
    const rpc::GroupId own{number_, endpoint_.node_->number()};
    const auto [number, member, reserved] = root_.value_or(own);
    return nb::cast(endpoint_.trace_of(member, number));
  }
  void log(const char* stage) const {
    if (!endpoint_.is_logged()) return;
    const nb::object member = endpoint_.agent_.attr("get_worker_info")(to());
    endpoint_.agent_.attr("log")("%s: call %s at %s %s", trace(), function(), member, stage);
  }

  Endpoint& endpoint_;
  const Endpoint::Request& request_;
  Histogram& times_;
  UnderWay* next_;
  UnderWay* before_ = nullptr;
  std::optional<rpc::GroupId> root_;  ///< of the calls that led to this one
  std::uint64_t number_ = 0;
  bool has_room_ = false, has_failed_ = true;
  const std::int64_t made_ns_ = now_ns();
  std::int64_t sent_ns_ = 0;
};

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

std::string Endpoint::trace_of(std::uint32_t caller, std::uint64_t number) {
  return fmt::format("{}.c{}", member(caller).name(), number);
}

/// The agent throws the error.
void Endpoint::check_arguments(nb::handle args) const {
  if (!args.is_none() && !PyTuple_Check(args.ptr()) && !PyList_Check(args.ptr()))
    agent_.attr("check_arguments")(args);
}

nb::object Endpoint::call_native(rpc::Member& to, nb::handle function, nb::handle args, nb::handle kwargs,
                                 nb::handle timeout) {
  check_arguments(args);
  const Naming naming = peer(to).is_program ? Naming::program : Naming::native;
  const Callee& callee = this->callee(function, naming);
  const auto [seconds, deadline] = native_deadline(timeout);
  Request request = this->request(to, callee, function, args, kwargs, deadline);
  request.stays_here = to.number() == node_->number();
  UnderWay entry(*this, request, *callee.times);
  rpc::CallRef call;
  try {
    entry.wait_for_room();
    call = send_or_raise(request, seconds);
    entry.sent(call->number);
    nb::object result = wait_and_take(call, seconds);
    entry.answered();
    return result;
  } catch (...) {  // the result is not wanted: the callee may stop
    if (call && call->end != rpc::End::answered)
      note(to.number(), nb::str("cancel"), nb::int_(call->number));
    throw;
  }
}

nb::list Endpoint::calls_made() const {
  nb::list found;
  for (const UnderWay* one = under_way_; one; one = one->next()) found.append(one->describe());
  return found;
}

/// Throws the function's exception.
nb::object Endpoint::run_native(const Target& target, const rpc::Work& work, const CallValues& values) {
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
    target.times->add(now_ns() - call.taken_ns(), failed);
    log(failed ? "failed" : "is done");
  };
  try {
    call.check();
    nb::object result = run_function(target, work, values);
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
