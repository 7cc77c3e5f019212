// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "binding/module.h"
#include "rpc/member.h"

namespace onecopy::python {

class OutgoingRefs;
class RunningCall;
class IncomingMessage;

/// The state of rpc in one thread. Thread safety: used by that thread, with the GIL held.
struct ThreadState {
  OutgoingRefs* outgoing = nullptr;     ///< the innermost message that is being written
  IncomingMessage* incoming = nullptr;  ///< the innermost message that is being read
  RunningCall* running = nullptr;       ///< the native call that the thread runs
  PyObject* context =
      nullptr;  ///< the context of distributed autograd, which the thread leaves before it ends

  /// Returns the context, or None.
  nb::object autograd() const { return context ? nb::borrow(context) : nb::none(); }
};

/// Returns the state of the calling thread.
ThreadState& this_thread() noexcept;

/// The references, the moved tensors and the record of autograd of one message, gathered while Python functions reduce its
/// values. Either sent() or take_back() ends it.
/// Thread safety: used by one thread, with the GIL held. The innermost OutgoingRefs of a thread is the current one.
class OutgoingRefs {
 public:
  OutgoingRefs(nb::handle agent, rpc::Member& receiver, bool is_result) noexcept
      : thread(this_thread()),
        agent_(agent),
        receiver_(receiver),
        is_result_(is_result),
        outer_(std::exchange(thread.outgoing, this)) {}
  OutgoingRefs& operator=(OutgoingRefs&&) = delete;
  ~OutgoingRefs() { thread.outgoing = outer_; }

  ThreadState& thread;

  /// Throws RuntimeError outside of a message.
  static OutgoingRefs& current();

  nb::object agent() const { return nb::borrow(agent_); }
  std::uint32_t receiver() const noexcept { return receiver_.number(); }
  /// Returns whether the message answers a call of the receiver, so that its tensors go to the devices of results.
  bool is_result() const noexcept { return is_result_; }

  void give(nb::object reference, nb::object fork) {
    references_.emplace_back(std::move(reference), std::move(fork));
  }
  void move(nb::object marked) { moved_.push_back(std::move(marked)); }
  void record(nb::object context, nb::object record) {
    recorded_ = {std::move(context), std::move(record)};
  }
  /// Counts tensors that take a route.
  void count(rpc::Route route, std::size_t tensors) noexcept {
    has_tensors_ = has_tensors_ || tensors != 0;
    routes_[static_cast<std::size_t>(route)] += tensors;
  }

  /// Returns whether the message has to be read in the order of its lane.
  bool has_references() const noexcept { return !references_.empty(); }
  /// Completes the message after it was put into the lane.
  void sent();
  /// Undoes the gathering for a message that was not sent.
  void take_back() noexcept;

 private:
  const nb::handle agent_;
  rpc::Member& receiver_;
  const bool is_result_;
  OutgoingRefs* const outer_;
  std::vector<std::pair<nb::object, nb::object>> references_;
  std::vector<nb::object> moved_;
  std::pair<nb::object, nb::object> recorded_;
  std::array<std::size_t, rpc::kRouteNames.size()> routes_{};
  bool has_tensors_ = false;
};

/// The sender of the message that is being read, for the Python functions that rebuild its values.
/// Thread safety: used by one thread, with the GIL held.
class IncomingMessage {
 public:
  IncomingMessage(nb::handle agent, std::uint32_t sender) noexcept
      : thread_(this_thread()),
        agent_(agent),
        sender_(sender),
        outer_(std::exchange(thread_.incoming, this)) {}
  IncomingMessage& operator=(IncomingMessage&&) = delete;
  ~IncomingMessage() { thread_.incoming = outer_; }

  /// Returns (agent, sender's number). Throws RuntimeError outside of a message.
  static nb::object current();

 private:
  ThreadState& thread_;
  const nb::handle agent_;
  const std::uint32_t sender_;
  IncomingMessage* const outer_;
};

void init_outgoing_refs(nb::module_& m);

}  // namespace onecopy::python
