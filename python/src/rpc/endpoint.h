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
/// A call names its function: "module:name" for a function of torch's interface, "native module:name" or "stream module:name" for
/// one of the native interface, and ".verb" for what members ask of each other. Its body is (arguments, keyword arguments).
///
/// Thread safety: the GIL, which is released while a thread waits.
class Endpoint {
 public:
  /// `transport`: to other hosts; see rpc::NodeOptions.
  Endpoint(nb::object agent, Hooks hooks, const std::string& name, std::uint32_t number,
           const std::string& transport);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  rpc::Node& node() noexcept { return *node_; }

  // members.cpp
  nb::bytes address();
  /// Enters another member, or this process. Returns (name, number, pid).
  nb::object join(const nb::bytes& address, bool is_program);
  bool is_far(std::uint32_t number) { return !member(number).shares_memory; }
  bool has_left(std::uint32_t number);
  /// Returns whether the member has ended, or was cut off and has not been connected to again.
  bool is_gone(std::uint32_t number);
  /// Returns the number of the last session with the member: 1, and one more after each cut.
  std::uint32_t session_with(std::uint32_t number);
  /// As Node::connect(), within so many seconds.
  void connect(std::uint32_t number, double seconds);
  nb::dict routes(std::uint32_t to);
  /// Returns the number of the member that joined as `name` last, or None.
  nb::object number_of(nb::handle name) const;
  using Cards = std::vector<std::pair<int, int>>;  ///< (number of a card here, number there)
  /// Says where tensors of calls go in a member, and where tensors of answers to it go.
  void set_devices(std::uint32_t of, const Cards& of_calls, const Cards& of_answers, bool numbers_agree,
                   bool is_automatic);

  // sending.cpp
  /// Calls a function and returns its result. `to` is a name, a number or a WorkerInfo.
  ///
  /// A call of torch's interface runs any function, also one without a name. A `is_native` call runs a function by its name, ends
  /// before the call that this thread runs, is limited, listed and timed, and may go to a program in C++; a native call of a
  /// function of this process itself gets the arguments themselves.
  nb::object call(nb::handle to, nb::handle function, nb::handle args, nb::handle kwargs,
                  nb::handle timeout, bool is_native);
  /// As a call of torch's interface, and gives the outcome to `future`, a CallFuture.
  void begin(nb::handle to, nb::handle function, nb::handle args, nb::handle kwargs, nb::handle timeout,
             nb::handle future);
  /// Calls what `verb` names with (args). `is_result`: its tensors answer a message of the member.
  nb::object call_verb(std::uint32_t to, const std::string& verb, nb::handle args, double seconds,
                       bool is_result);
  /// `reference`: the one that the verb makes, or None.
  void begin_verb(std::uint32_t to, const std::string& verb, nb::handle args, double seconds,
                  bool is_result, nb::handle reference, nb::handle future);
  /// Sends gradients of distributed autograd, to the devices of results: a call in no context, in no order and without a limit.
  nb::object call_gradients(std::uint32_t to, nb::handle args) {
    return wait_and_take(send_gradients(to, args), 0);
  }
  RpcCall begin_gradients(std::uint32_t to, nb::handle args) { return {node_, send_gradients(to, args)}; }
  /// Sends (verb, value), which is handled in its order and has no answer. Does nothing if the member has ended.
  void note(std::uint32_t to, nb::handle verb, nb::handle value);
  /// Lets a worker call task().
  void run_soon(nb::handle task);
  /// Returns (value, error, points in streams behind which the value's tensors are there) of a call that has ended.
  nb::object outcome(const rpc::CallRef& call, double seconds);

  // native_calls.cpp
  /// Returns (seconds, deadline) of a native call that is made now: it ends before the call that this thread runs.
  std::pair<double, Deadline> native_deadline(nb::handle timeout) const;
  /// As a native call, and gives the outcome to `future`. Returns the UnderWay of the call, which the future ends.
  nb::object begin_native(nb::handle to, nb::handle function, nb::handle args, nb::handle kwargs,
                          nb::handle timeout, nb::handle future, bool is_stream);
  /// Describes the native calls that this process makes and runs.
  nb::list calls() const;
  /// Returns the name of a call, and of the calls that it leads to, in logs.
  std::string trace_of(std::uint32_t caller, std::uint64_t number);

  // serving.cpp
  /// Does the work of a thread of Python, until the node has no use for it. Called without the GIL.
  void run() noexcept { workers_.work(); }
  void answer_member(std::uint32_t to, std::uint64_t call, nb::handle result) {
    answer(member(to), call, result, kForever);
  }
  /// Answers with an exception. `code` is its word, for a program in C++.
  void fail(std::uint32_t to, std::uint64_t call, nb::handle kind, const std::string& text,
            const std::string& code);
  void stop();

  int traverse(visitproc visit, void* arg);
  void clear();

  double usual_timeout = 60;  ///< of calls that say none; 0: none
  ServedCalls served;
  RunningCalls running;
  CallLimit limit;
  Histograms called, served_times;

 private:
  friend class UnderWay;

  /// A way in which the callee finds a function.
  enum class Naming : std::uint8_t { torch, native, program, stream };
  /// A function that this process calls.
  struct Callee {
    nb::object names, name, check;  ///< `name` stands for it in `names`; check(args, kwargs) may refuse
    rpc::FunctionEntry* function = nullptr;  ///< null: it has no name, and crosses as a value
    Histogram* times = nullptr;
  };
  /// A function of this process that others call: the callable of an rpc::FunctionEntry.
  struct Target {
    /// The kind says how it runs. function: its result is the answer. native: as well, and it has a RunningCall. verb:
    /// agent.serve(function, caller, call, args) returns a tuple of the answer, or None if it answers later.
    enum class Kind : std::uint8_t { function, native, verb };
    nb::object function, names, name;
    Kind kind = Kind::function;
    bool is_asynchronous = false;  ///< returns a Future of its result
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
        false;  ///< a native call of this process itself: its function gets the values themselves
    nb::object reference =
        nb::none();  ///< (member, number) of the one to the result, which stays in the member
    nb::handle future{};
  };
  /// A member, as Python's part of rpc knows it.
  struct Peer {
    Receiver of_calls, of_answers;
    bool is_program = false;
  };
  using Callees = std::unordered_map<PyObject*, Callee>;

  // members.cpp
  rpc::Member& member(std::uint32_t number);
  rpc::Member& member_to_call(std::uint32_t number);  ///< in a new session, if it was cut off
  rpc::Member& member_for(nb::handle to);
  const Peer& peer(const rpc::Member& member) { return peers_[member.number()]; }

  // sending.cpp
  const Callee& callee(nb::handle function, Naming naming);
  Request request(rpc::Member& to, const Callee& callee, nb::handle function, nb::handle args,
                  nb::handle kwargs, Deadline deadline);
  Request verb_request(std::uint32_t to, std::string_view verb, nb::handle args, double seconds);
  rpc::CallRef send_gradients(std::uint32_t to, nb::handle args);
  static rpc::CallContext surroundings_of(const Request& request, const RunningCall* parent);
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
  nb::object run_native(const Target& target, const rpc::Work& work, const CallValues& values);

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
  const Target& target(rpc::FunctionEntry& function);
  void answer(rpc::Member& to, std::uint64_t call, nb::handle result, Deadline deadline);
  void run_target(const Target& target, rpc::Work& work, const CallValues& values);
  nb::object run_function(const Target& target, const rpc::Work& work, const CallValues& values);

  nb::object agent_;
  Hooks hooks_;
  std::shared_ptr<rpc::Node> node_;  ///< calls that are under way have it as well
  rpc::Workers workers_;             ///< threads that Python starts
  nb::dict numbers_;                 ///< of members, by name
  std::unordered_map<std::uint32_t, Peer> peers_;
  std::array<Callees, 4> callees_;  ///< by how they are named; their keys are kept
  nb::object is_logged_;
  class UnderWay* under_way_ = nullptr;  ///< the native calls of this process
};

/// The name of a function without what tells native calls and streams apart on the wire.
inline std::string_view public_name(std::string_view wire_name) noexcept {
  for (const std::string_view how : {"native ", "stream "})
    if (wire_name.starts_with(how)) return wire_name.substr(how.size());
  return wire_name;
}

[[noreturn]] inline void raise(const nb::object& error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

/// REQUIRES: a tuple that is long enough.
inline nb::object tuple_item(nb::handle tuple, Py_ssize_t at) {
  return nb::borrow(NB_TUPLE_GET_ITEM(tuple.ptr(), at));
}

void init_native_calls(nb::module_& m);

/// Returns (arguments, keyword arguments). None stands for the empty tuple. Throws TypeError for anything but a tuple, list or dict.
nb::object values_of_call(nb::handle args, nb::handle kwargs);

}  // namespace onecopy::python
