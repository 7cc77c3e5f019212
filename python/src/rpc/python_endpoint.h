// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "binding/module.h"
#include "rpc/body.h"
#include "rpc/call_limit.h"
#include "rpc/histograms.h"
#include "rpc/node.h"
#include "rpc/rpc_call.h"
#include "rpc/running_call.h"
#include "rpc/served_calls.h"
#include "rpc/times.h"
#include "rpc/workers.h"

namespace onecopy::python {

/// The endpoint of this process in a group of Python programs, which takes every call from the caller's arguments to
/// the callee's function and back. The Python class Agent owns the endpoint and decides the rare cases: names, members,
/// errors.
///
/// A call names its function: "module:name" in torch's interface, "native module:name" or "stream module:name" in the
/// native interface, and ".verb" for calls between the agents. Its body is (arguments, keyword arguments).
///
/// Thread safety: the GIL, which is released while a thread waits.
class PythonEndpoint {
 public:
  /// `transport` is the transport to other hosts; see rpc::NodeOptions.
  PythonEndpoint(nb::object agent, Hooks hooks, const std::string& name, std::uint32_t number,
                 const std::string& transport);
  ~PythonEndpoint();
  PythonEndpoint& operator=(PythonEndpoint&&) = delete;

  rpc::Node& node() noexcept { return *node_; }

  // members.cpp
  nb::bytes address();
  /// Adds another member, or this process. Returns (name, number, pid).
  nb::object join(const nb::bytes& address, bool is_program);
  /// Returns the number of the member with that name, number or WorkerInfo.
  std::uint32_t number_of(nb::handle to) { return member_for(to).number(); }
  bool is_far(std::uint32_t number) { return !member(number).shares_memory; }
  bool has_left(std::uint32_t number) { return member(number).has_left; }
  /// Returns whether the member has ended, or has lost its connection and has no new one.
  bool is_gone(std::uint32_t number) { return member(number).is_gone(); }
  /// Returns the number of the last session with the member. Sessions are numbered from 1; each lost connection ends
  /// one.
  std::uint32_t session_with(std::uint32_t number) { return member(number).session; }
  /// Calls Node::connect() with a limit in seconds.
  void connect(std::uint32_t number, double seconds);
  nb::dict routes(std::uint32_t to);
  using Cards =
      std::vector<std::pair<int, int>>;  ///< (number of a card in this process, number in the member)
  /// Sets the cards to which tensors of calls to a member and of answers to it go.
  void set_devices(std::uint32_t of, const Cards& of_calls, const Cards& of_answers, bool numbers_agree,
                   bool is_automatic);

  // sending.cpp
  /// Calls a function and returns its result. `to` is a name, a number or a WorkerInfo.
  ///
  /// A call of torch's interface runs any function, even without a name. A native call (`is_native`) runs a function by
  /// its name, ends before the call that this thread runs, is limited, listed and timed, and may go to a program in
  /// C++. A native call to this process itself passes the arguments without a copy.
  nb::object call(nb::handle to, nb::handle function, nb::handle args, nb::handle kwargs,
                  nb::handle timeout, bool is_native);
  /// Starts a call of torch's interface, whose outcome completes `future`, a CallFuture. `reference` is the reference
  /// that the call makes to its result, or None: the answer is then (result,) for a small constant, and else None.
  void begin(nb::handle to, nb::handle function, nb::handle args, nb::handle kwargs, nb::handle timeout,
             nb::handle reference, nb::handle future);
  /// Calls a verb with `args` and returns its result. `is_result` is whether the tensors of `args` answer a message of
  /// the member.
  nb::object call_verb(std::uint32_t to, const std::string& verb, nb::handle args, double seconds,
                       bool is_result);
  /// Starts a call of a verb, whose outcome completes `future`. `reference` is the reference that the verb makes, or
  /// None.
  void begin_verb(std::uint32_t to, const std::string& verb, nb::handle args, double seconds,
                  bool is_result, nb::handle reference, nb::handle future);
  /// Sends gradients of distributed autograd to the devices of results, and returns the answer. The call has no
  /// context, order or limit.
  nb::object call_gradients(std::uint32_t to, nb::handle args) {
    return wait_and_take(send_gradients(to, args), 0);
  }
  RpcCall begin_gradients(std::uint32_t to, nb::handle args) { return {node_, send_gradients(to, args)}; }
  /// Sends a note, which is handled in order and has no answer. Has no effect if the member has ended.
  void note(std::uint32_t to, nb::handle verb, nb::handle value);
  /// Lets a worker call task().
  void run_soon(nb::handle task);
  /// Returns the outcome of an ended call, as (value, error, points in streams after which the value's tensors are
  /// complete).
  nb::object outcome(const rpc::CallRef& call, double seconds);

  // native_calls.cpp
  /// Returns (seconds, deadline) of a new native call, which must end before the call that this thread runs.
  std::pair<double, Deadline> native_deadline(nb::handle timeout) const;
  /// Starts a native call, whose outcome completes `future`. Returns the PendingCall of the call, which the future ends.
  nb::object begin_native(nb::handle to, nb::handle function, nb::handle args, nb::handle kwargs,
                          nb::handle timeout, nb::handle future, bool is_stream);
  /// Describes the native calls that this process makes and runs.
  nb::list calls() const;
  /// Returns the name in logs of a call and of the calls that its function makes.
  std::string trace_of(std::uint32_t caller, std::uint64_t number);

  // serving.cpp
  /// Runs a worker in the calling thread of Python until the node needs the worker no longer. Called without the GIL.
  void run() noexcept { workers_.work(); }
  void answer_member(std::uint32_t to, std::uint64_t call, nb::handle result) {
    answer(member(to), call, result, kForever);
  }
  /// Answers a call with an exception. `code` names the error for a program in C++.
  void fail(std::uint32_t to, std::uint64_t call, nb::handle kind, const std::string& text,
            const std::string& code);
  void stop();

  int traverse(visitproc visit, void* arg);
  void clear();

  double usual_timeout = 60;  ///< the timeout of calls without one, in seconds; 0 for no limit
  ServedCalls served;
  RunningCalls running;
  CallLimit limit;
  Histograms called, served_times;

 private:
  friend class PendingCall;

  /// The way in which the callee finds a function.
  enum class Naming : std::uint8_t { torch, native, program, stream };
  /// A function that this process calls.
  struct RemoteFunction {
    nb::object names, name, check;  ///< `names[name]` is the function; check(args, kwargs) may raise
    rpc::FunctionEntry* function = nullptr;  ///< null if the function has no name and is sent as a value
    Histogram* times = nullptr;
  };
  /// A function of this process that others call: the callable of an rpc::FunctionEntry.
  struct LocalFunction {
    /// The way to run the function. function: the result is the answer. native: the result is the answer, and the call
    /// has a RunningCall. verb: agent.serve(function, caller, call, args) returns a tuple of the answer, or None for a
    /// deferred answer.
    enum class Kind : std::uint8_t { function, native, verb };
    nb::object function, names, name;
    Kind kind = Kind::function;
    bool is_asynchronous = false;  ///< whether the function returns a Future of its result
    nb::object prepare;  ///< prepare(caller, args) returns the arguments, in the order of the lane; or None
    Histogram* times = nullptr;
  };
  struct Request {
    rpc::Member& to;
    rpc::FunctionEntry& function;
    nb::object values;
    Deadline deadline;
    bool is_result = false;
    bool is_in_order = false;
    bool stays_here =
        false;  ///< whether a native call to this process itself passes its values without a copy
    nb::object reference =
        nb::none();  ///< the reference to a result that stays in the member, as (member, number)
    nb::handle future{};
  };
  /// The form in which values are written for a member.
  struct PeerCodec {
    Receiver of_calls, of_answers;
    bool is_program = false;
  };
  using RemoteFunctions = std::unordered_map<PyObject*, RemoteFunction>;

  // members.cpp
  rpc::Member& member(std::uint32_t number);
  rpc::Member& member_to_call(std::uint32_t number);  ///< starts a new session if the connection was lost
  rpc::Member& member_for(nb::handle to);
  const PeerCodec& codec_of(const rpc::Member& member) { return codecs_[member.number()]; }

  // sending.cpp
  const RemoteFunction& remote_function(nb::handle function, Naming naming);
  Request request(rpc::Member& to, const RemoteFunction& remote, nb::handle function, nb::handle args,
                  nb::handle kwargs, Deadline deadline);
  Request verb_request(std::uint32_t to, std::string_view verb, nb::handle args, double seconds);
  rpc::CallRef send_gradients(std::uint32_t to, nb::handle args);
  static rpc::CallContext context_of(const Request& request, const RunningCall* parent);
  rpc::CallRef send(const Request& request);
  rpc::CallRef send_or_raise(const Request& request, double seconds);
  std::uint64_t send_for(const Request& request, double seconds);
  nb::object wait_and_take(const rpc::CallRef& call, double seconds);
  nb::object read_answer(rpc::Call& call);
  nb::object result(const rpc::CallRef& call, double seconds);

  // native_calls.cpp
  nb::object call_native(rpc::Member& to, nb::handle function, nb::handle args, nb::handle kwargs,
                         nb::handle timeout);
  void check_arguments(nb::handle args) const;
  bool is_logged() const { return nb::cast<bool>(is_logged_()); }
  nb::object run_native(const LocalFunction& local, const rpc::Work& work, const CallValues& values);

  // serving.cpp
  void add_worker() noexcept;
  void handle(rpc::Work& work) noexcept;
  void refuse(const rpc::Work& work, nb::handle error) noexcept;
  void do_work(rpc::Work& work);
  void take_in_order(rpc::Work& work);
  void take_answer(rpc::Work& work);
  void complete_with(const rpc::CallRef& call, nb::object outcome);
  nb::object own_arguments(const rpc::Work& work);
  void serve(rpc::Work& work);
  std::shared_ptr<const LocalFunction> local_function(rpc::FunctionEntry& function);
  void answer(rpc::Member& to, std::uint64_t call, nb::handle result, Deadline deadline);
  void run_local(const LocalFunction& local, rpc::Work& work, const CallValues& values);
  nb::object run_function(const LocalFunction& local, const rpc::Work& work, const CallValues& values);

  nb::object agent_;
  Hooks hooks_;
  std::shared_ptr<rpc::Node> node_;  ///< pending calls own the node, too
  rpc::Workers workers_;             ///< threads that Python starts
  nb::dict numbers_;                 ///< the numbers of members by name
  std::unordered_map<std::uint32_t, PeerCodec> codecs_;
  std::array<RemoteFunctions, 4>
      remote_functions_;  ///< the functions by Naming; owns references to their keys
  nb::object is_logged_;
  class PendingCall* pending_calls_ = nullptr;  ///< the native calls of this process
};

/// Returns the wire name of a function without the prefix of native calls and streams.
inline std::string_view public_name(std::string_view wire_name) noexcept {
  for (const std::string_view how : {"native ", "stream "})
    if (wire_name.starts_with(how)) return wire_name.substr(how.size());
  return wire_name;
}

/// Returns tuple[at]. REQUIRES: the tuple has more than `at` items.
inline nb::object tuple_item(nb::handle tuple, Py_ssize_t at) {
  return nb::borrow(NB_TUPLE_GET_ITEM(tuple.ptr(), at));
}

void init_native_calls(nb::module_& m);

/// Returns (arguments, keyword arguments), with an empty tuple in place of None. Throws TypeError for other types.
nb::object pack_arguments(nb::handle args, nb::handle kwargs);

}  // namespace onecopy::python
