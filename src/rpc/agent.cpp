// SPDX-License-Identifier: Apache-2.0
#include "onecopy/rpc/agent.h"

#include <fmt/format.h>

#include <utility>

#include "core/moved_from.h"
#include "core/point.h"
#include "core/throw_error.h"
#include "os/log.h"
#include "os/process.h"
#include "rpc/node.h"
#include "rpc/value_codec.h"
#include "rpc/workers.h"

namespace onecopy::rpc {
namespace {

using std::chrono::nanoseconds;

[[noreturn]] void throw_end(const Node& node, const Member& member, End end) {
  switch (end) {
    case End::late: throw_error(ErrorCode::timeout, "{} has not answered a call in time", member.name());
    case End::member_ended:
      throw_error(ErrorCode::peer_died,
                  "{} has {} while it was called; the function may have run, and is not run again",
                  member.name(), why_ended(member));
    case End::cancelled: throw Error(ErrorCode::closed, "the call was cancelled");
    default: throw_error(ErrorCode::closed, "{} has left the group", node.name());
  }
}

Values values_of(Message&& message) { return {std::move(message.data), std::move(message.tensors)}; }

Message message_of(Values&& values) { return {0, std::move(values.data), std::move(values.tensors)}; }

Message message_of(const Value& value) {
  Message message;
  encode_value(value, message);
  message.tag = kPlainBody << kBodyShift;
  return message;
}

/// Returns the arguments of a plain call. Throws for keyword arguments.
Value::List arguments_of(const Message& message) {
  if (body_form(message.tag) != kPlainBody)
    throw Error(ErrorCode::invalid_argument, "this function takes plain values: call it with call_plain()");
  const Value call = decode_value(message.data, message.tensors);
  const Value::List& parts = call.as_list();
  if (parts.size() != 2) refuse_message("is not a plain call");
  if (parts[1].kind() != Value::Kind::none && !parts[1].as_dict().empty())
    throw Error(ErrorCode::invalid_argument, "a function in C++ takes no keyword arguments");
  return parts[0].as_list();
}

Value value_of(const Message& answer) {
  if (body_form(answer.tag) != kPlainBody)
    throw Error(ErrorCode::unsupported, "the function was called, and its result is not a plain value");
  return decode_value(answer.data, answer.tensors);
}

/// Returns the failure that reports the exception of a function. REQUIRES: called in a catch block.
Message failure_of(const std::string& callee) {
  const auto failure = [&](ErrorCode code, const char* text) {
    return encode_failure(code,
                          fmt::format("On {}: {}", callee, text ? text : "an exception without a text"));
  };
  try {
    throw;
  } catch (const Error& error) {
    return failure(error.code(), error.what());
  } catch (const std::exception& error) {
    return failure(ErrorCode::remote_error, error.what());
  } catch (...) {
    return failure(ErrorCode::remote_error, "the function threw an object that is not a std::exception");
  }
}

/// A function of a message's body. The caller gets its exceptions.
using BodyFunction = std::function<Message(Message&&)>;

}  // namespace

struct Agent::State {
  explicit State(AgentOptions&& from)
      : options(std::move(from)),
        node({options.name, options.number, options.spin, options.transport, true}),
        workers(node, options.max_workers, [this](Work& work) { run(work); }) {
    workers.add();
  }

  Member& member(std::string_view name) {
    if (Member* const found = node.find(name)) return node.session_with(*found);
    throw_error(ErrorCode::invalid_argument,
                "\"{}\" is not a member of the group of {}: join() its address first", name, options.name);
  }
  Deadline deadline(nanoseconds timeout) const {
    if (timeout == nanoseconds{0}) timeout = options.timeout;
    return timeout <= nanoseconds{0} ? kForever : Deadline::after(timeout);
  }
  CallRef call(Member& to, std::string_view function, Message&& arguments, nanoseconds timeout) {
    to.count(to.number() == node.number() ? Route::here : Route::lease, arguments.tensors.size());
    return node.call(to, {std::move(arguments), node.functions().of(function)}, deadline(timeout));
  }
  Message result(Member& from, const CallRef& call) {
    try {
      Workers::wait_for(node, call);
    } catch (...) {  // out of memory: no thread waits for the answer any longer
      node.end_call(call, End::cancelled);
      throw;
    }
    if (call->end != End::answered) throw_end(node, from, call->end);
    if (call->status == Status::failure) throw_failure(std::move(call->answer));
    return std::move(call->answer);
  }

  void define(std::string_view name, BodyFunction function) {
    Functions::define(node.functions().of(name), std::make_shared<BodyFunction>(std::move(function)));
  }
  void run(Work& work) noexcept;
  void serve(Work& work);
  Message run_function(Work& work);

  const AgentOptions options;
  Node node;
  Workers workers;
};

void Agent::State::run(Work& work) noexcept {
  if (work.is_in_order) node.end_order();  // in C++ nothing depends on the order
  try {
    if (work.kind == Work::Kind::call) serve(work);
    if (work.kind == Work::Kind::service) node.serve(work);
    if (work.kind == Work::Kind::answer)
      node.complete(work.done, End::answered, work.status, std::move(work.message));
  } catch (const std::exception& error) {  // the caller has ended, or its memory is used up
    log_warning(fmt::format("a call of {} was not answered: {}", work.from->name(), error.what()));
  }
}

/// Runs the call's function and sends the answer. Does nothing after the deadline, when the caller no longer waits.
void Agent::State::serve(Work& work) {
  if (work.from->has_ended || work.deadline.has_passed()) return;
  point("rpc.serve.running");
  Message failure;
  try {
    Message result = run_function(work);
    work.from->count(Route::lease, result.tensors.size());
    return node.answer(*work.from, work.call, Status::value, std::move(result), false, {}, work.deadline);
  } catch (...) {
    failure = failure_of(options.name);
  }
  node.answer(*work.from, work.call, Status::failure, std::move(failure));
}

Message Agent::State::run_function(Work& work) {
  const auto function = std::static_pointer_cast<const BodyFunction>(work.function->callable());
  if (!function)
    throw_error(ErrorCode::invalid_argument, "no function \"{}\" is defined", work.function->name());
  return (*function)(std::move(work.message));
}

struct Future::State {
  State(Agent::State& from, Member& to, CallRef&& under_way)
      : agent(from), member(to), call(std::move(under_way)) {}

  Agent::State& agent;
  Member& member;
  CallRef call;
};

Future::Future(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Future::Future(Future&&) noexcept = default;
Future& Future::operator=(Future&&) noexcept = default;
Future::~Future() = default;

Future::State& Future::state() const { return of_object(state_, "Future"); }

Values Future::get() { return values_of(state().agent.result(state().member, state().call)); }

bool Future::wait_for(nanoseconds timeout) {
  const Deadline until = Deadline::after(timeout);
  while (!state().agent.node.wait(state().call, until))
    if (until.left(nanoseconds{1}) == nanoseconds{0}) return false;
  return true;
}

bool Future::is_ready() const { return state().agent.node.has_ended(state().call); }

Agent::Agent(AgentOptions options) {
  if (options.name.empty() || options.name.size() > kMaxNameBytes)
    throw Error(ErrorCode::invalid_argument, "a member of a group needs a name, of 1024 bytes at most");
  state_ = std::make_unique<State>(std::move(options));
}

Agent::Agent(Agent&&) noexcept = default;
Agent& Agent::operator=(Agent&& other) noexcept {
  if (this == &other) return *this;
  if (state_) shutdown();
  state_ = std::move(other.state_);
  return *this;
}

Agent::~Agent() {
  if (state_) shutdown();
}

Agent::State& Agent::state() const { return of_object(state_, "Agent"); }

const std::string& Agent::name() const { return state().options.name; }

Bytes Agent::address() const { return state().node.address().to_bytes(); }

std::string Agent::join(ByteSpan address) { return state().node.join(Address::from_bytes(address)).name(); }

void Agent::define(std::string_view name, Function function) {
  state().define(name, [function = std::move(function)](Message&& message) {
    if (body_form(message.tag) != 0)
      throw Error(ErrorCode::invalid_argument,
                  "this call's arguments are of another language: define_plain() takes them");
    return message_of(function(values_of(std::move(message))));
  });
}

void Agent::define_plain(std::string_view name, PlainFunction function) {
  state().define(name, [function = std::move(function)](Message&& message) {
    return message_of(function(arguments_of(message)));
  });
}

Values Agent::call(std::string_view member, std::string_view function, Values&& arguments,
                   nanoseconds timeout) {
  Member& to = state().member(member);
  return values_of(
      state().result(to, state().call(to, function, message_of(std::move(arguments)), timeout)));
}

Value Agent::call_plain(std::string_view member, std::string_view function, Value::List arguments,
                        nanoseconds timeout) {
  Member& to = state().member(member);
  Message message = message_of(Value::tuple({Value::tuple(std::move(arguments)), Value()}));
  return value_of(state().result(to, state().call(to, function, std::move(message), timeout)));
}

Future Agent::call_async(std::string_view member, std::string_view function, Values&& arguments,
                         nanoseconds timeout) {
  Member& to = state().member(member);
  CallRef call = state().call(to, function, message_of(std::move(arguments)), timeout);
  return Future(std::make_unique<Future::State>(state(), to, std::move(call)));
}

std::size_t Agent::calls_under_way() const { return state().node.calls_under_way(); }

void Agent::shutdown() {
  state().node.stop();
  state().workers.join();
}

}  // namespace onecopy::rpc
