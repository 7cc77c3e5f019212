// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "binding/module.h"
#include "rpc/call_values.h"
#include "rpc/node.h"
#include "rpc/served_calls.h"
#include "value/values.h"

namespace onecopy::python {

/// A call as Python has it.
/// Thread safety: the GIL; wait() lets go of it.
class RpcCall {
 public:
  RpcCall(std::shared_ptr<rpc::Node> node, rpc::CallRef call)
      : node_(std::move(node)), call_(std::move(call)) {}

  std::uint64_t number() const noexcept { return call_->number; }
  std::uint32_t member() const noexcept { return call_->member(); }
  /// After a look at the messages that have come.
  bool is_done();
  /// From here on a worker calls future._settle() when the call ends, unless a thread waits for it then. False when it has
  /// ended.
  bool want(nb::handle future);
  int how_it_ended() const noexcept { return static_cast<int>(call_->end); }
  /// Until it has ended. Signal handlers of Python run meanwhile, and their exceptions end the wait.
  void wait();
  /// Ends it from here, without an answer. False when it has ended.
  bool end();
  /// For a worker: the call is over, and what there is to know its Future has.
  void complete();
  /// (is it plain, value, has it tensors of cards) of the answer, once; (None, outcome, False) when a worker has decoded it, in its order.
  nb::object take_answer();

 private:
  std::shared_ptr<rpc::Node> node_;
  rpc::CallRef call_;
};

/// This process's Node for onecopy.rpc._agent, which decides about calls that are not plain.
///
/// A plain call is one of a function that both sides know by its name, with plain values and tensors of the CPU or
/// of cards that the device maps have, and without a context of autograd. It never enters Python code of ours, on either side.
/// Thread safety: the GIL.
class RpcNode {
 public:
  RpcNode(const std::string& name, std::uint32_t number);
  ~RpcNode();
  RpcNode(const RpcNode&) = delete;
  RpcNode& operator=(const RpcNode&) = delete;

  rpc::Node& node() noexcept { return *node_; }
  nb::bytes address();
  /// (name, number, pid) of the member.
  nb::object join(nb::bytes address);
  /// For listings: a tensor goes to that member by this route.
  bool is_far(std::uint32_t number);
  /// As Node::connect().
  void connect(std::uint32_t number, nb::handle deadline);
  void count_route(std::uint32_t to, const std::string& route);
  /// {route: tensors that went to that member by it}
  nb::dict routes(std::uint32_t to);
  void set_number_of(const std::string& name, nb::handle number);
  /// Of the member that had the name last; None for an unknown one.
  nb::object number_of(nb::handle name) const;
  /// (number of a card here, number there)
  using Cards = std::vector<std::pair<int, int>>;
  /// Where tensors of plain calls go in that member, and where those of answers to it go.
  void set_devices(std::uint32_t of, const Cards& of_calls, const Cards& of_answers, bool numbers_agree,
                   bool is_automatic);

  // Calls that are not plain, or in a context of autograd.
  /// How a value is written: general ones as queues carry them, plain ones with copies of their tensors, which go to the
  /// devices of calls or of answers.
  enum class Form : std::uint8_t { general, plain_call, plain_answer };
  /// NotImplemented for a value that has no such form. Without a future the caller waits for the call.
  nb::object call(std::uint32_t to, nb::handle value, nb::handle deadline, nb::handle future, Form form);
  nb::object begin_here(nb::handle deadline, nb::handle future);
  void note(std::uint32_t to, nb::handle value);
  /// Of a function in C++, by its name there: `values` are (arguments, keyword arguments or None). Throws TypeError for
  /// any other than plain values.
  nb::object call_program(std::uint32_t to, const std::string& function, nb::handle values,
                          nb::handle deadline, nb::handle future);
  /// To a program in C++: an error by the word for its cause, and its text.
  void answer_program(std::uint32_t to, std::uint64_t call, const std::string& code,
                      const std::string& text);
  /// False for a value that has no such form.
  bool answer(std::uint32_t to, std::uint64_t call, nb::handle value, bool is_in_order, Form form);

  // Plain ones.
  /// The function is called by this name from here on: it is what `name` stands for in `names`, its module's. Unless
  /// `check` is None, it is called with (arguments, keyword arguments) before anything is sent.
  void learn(nb::handle function, const std::string& wire_name, nb::handle names, nb::handle name,
             nb::handle check);
  bool knows(nb::handle function) const { return plain_.count(function.ptr()) != 0; }
  /// The result; NotImplemented when it is no plain call, and nothing was sent. `agent` says what other answers mean.
  nb::object call_plain(nb::handle agent, nb::handle to, nb::handle function, nb::handle args,
                        nb::handle kwargs, nb::handle timeout);
  /// The call, or NotImplemented. `trace` is None but in a native call that another one makes.
  nb::object begin_plain(nb::handle to, nb::handle function, nb::handle args, nb::handle kwargs,
                         nb::handle timeout, nb::handle trace);

  // Plain ones of the package's own functions, with tensors that answer a message of that member: they go where results go.
  /// The result, or NotImplemented, as call_plain(). No deadline.
  nb::object call_answering(nb::handle agent, std::uint32_t to, const std::string& function,
                            nb::handle args);
  /// The call, or NotImplemented.
  nb::object begin_answering(std::uint32_t to, const std::string& function, nb::handle args);

  /// What a worker does, until stop().
  void run(nb::handle agent);
  void stop();

  double usual_timeout = 60;            ///< of plain calls that say none; 0: none
  nb::object member_type;               ///< whose instances name a member by their `id`
  nb::object marked_type = nb::none();  ///< see Receiver; set before set_devices()
  ServedCalls served;

 private:
  /// A function that is called by its name.
  struct Plain {
    nb::object names, name, check;
    std::string wire_name;
  };
  struct Receivers {
    Receiver of_calls, of_answers;
  };
  struct Target;

  rpc::Member& member(std::uint32_t number);
  bool encode(rpc::Member& to, nb::handle value, Form form, Message& message);
  rpc::Member* member_for(nb::handle to);
  const Plain* plain(nb::handle function) const;
  rpc::CallRef send_plain(rpc::Member*& to, nb::handle whom, nb::handle function, const nb::object& values,
                          double seconds);
  rpc::CallRef send_named(rpc::Member& to, const std::string& name, const nb::object& values,
                          Receiver receiver, Deadline deadline);
  rpc::CallRef send_answering(std::uint32_t to, const std::string& function, nb::handle args);
  nb::object wait_plain(nb::handle agent, const rpc::CallRef& call, double seconds);

  void handle(nb::handle agent, rpc::Work& work) noexcept;
  void refuse(nb::handle agent, const rpc::Work& work, const std::string& text) noexcept;
  void do_work(nb::handle agent, rpc::Work& work);
  void take(nb::handle agent, rpc::Work& work);
  void serve_plain(nb::handle agent, rpc::Work& work);
  void serve_told(nb::handle agent, rpc::Work& work, nb::handle function, const CallValues& values);
  void answer_plain(nb::handle agent, rpc::Work& work, nb::handle result);
  void take_answer(nb::handle agent, rpc::Work& work);
  Target& target(nb::handle agent, rpc::Name& name);

  std::shared_ptr<rpc::Node> node_;                         ///< calls that are under way have it as well
  nb::dict numbers_;                                        ///< of members, by name
  std::unordered_map<std::uint32_t, Receivers> receivers_;  ///< by number
  std::unordered_map<PyObject*, Plain> plain_;              ///< functions, which are kept
  std::vector<std::unique_ptr<Target>> targets_;
};

}  // namespace onecopy::python
