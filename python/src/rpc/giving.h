// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "binding/module.h"
#include "rpc/member.h"

namespace onecopy::python {

/// The references, the moved tensors and the record of autograd of one message, gathered while Python functions reduce its
/// values. Either sent() or take_back() ends it.
/// Thread safety: used by one thread, with the GIL held. The innermost one is the thread's current one.
class Giving {
 public:
  Giving(nb::handle agent, rpc::Member& receiver, bool is_result) noexcept
      : agent_(agent), receiver_(receiver), is_result_(is_result), outer_(std::exchange(current_, this)) {}
  Giving(const Giving&) = delete;
  Giving& operator=(const Giving&) = delete;
  ~Giving() { current_ = outer_; }

  /// Throws RuntimeError outside of a message.
  static Giving& current();

  nb::object agent() const { return nb::borrow(agent_); }
  std::uint32_t receiver() const noexcept { return receiver_.number(); }
  /// Returns whether the message answers a call of the receiver: its tensors go to the devices of results.
  bool is_result() const noexcept { return is_result_; }

  void give(nb::object reference, nb::object fork) {
    references_.emplace_back(std::move(reference), std::move(fork));
  }
  void move(nb::object marked) { moved_.push_back(std::move(marked)); }
  void record(nb::object context, nb::object record) {
    recorded_ = {std::move(context), std::move(record)};
  }
  /// Counts tensors that go by a route.
  void count(rpc::Route route, std::size_t tensors) noexcept {
    has_tensors_ = has_tensors_ || tensors != 0;
    routes_[static_cast<std::size_t>(route)] += tensors;
  }

  /// Returns whether the message has to be read in the order of its lane.
  bool has_references() const noexcept { return !references_.empty(); }
  /// The message is in the lane.
  void sent();
  /// The message was not sent.
  void take_back() noexcept;

 private:
  static thread_local Giving* current_;

  const nb::handle agent_;
  rpc::Member& receiver_;
  const bool is_result_;
  Giving* const outer_;
  std::vector<std::pair<nb::object, nb::object>> references_;
  std::vector<nb::object> moved_;
  std::pair<nb::object, nb::object> recorded_;
  std::array<std::size_t, rpc::kRouteNames.size()> routes_{};
  bool has_tensors_ = false;
};

/// The sender of the message that is being read, for the Python functions that rebuild its values.
/// Thread safety: as Giving.
class Taking {
 public:
  Taking(nb::handle agent, std::uint32_t sender) noexcept
      : agent_(agent), sender_(sender), outer_(std::exchange(current_, this)) {}
  Taking(const Taking&) = delete;
  Taking& operator=(const Taking&) = delete;
  ~Taking() { current_ = outer_; }

  /// Returns (agent, sender's number). Throws RuntimeError outside of a message.
  static nb::object current();

 private:
  static thread_local Taking* current_;

  const nb::handle agent_;
  const std::uint32_t sender_;
  Taking* const outer_;
};

void init_giving(nb::module_& m);

}  // namespace onecopy::python
