// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "binding/module.h"
#include "os/deadline.h"
#include "rpc/message.h"
#include "rpc/outgoing_refs.h"
#include "rpc/times.h"

namespace onecopy::python {

class RunningCalls;

/// Describes a call for onecopy.rpc.calls(). `stages` holds the time in ns at which the call reached each stage; 0 for
/// a stage not reached yet.
nb::dict describe_call(const char* direction, const std::string& trace, const std::string& function,
                       const std::string& member, Deadline deadline,
                       std::initializer_list<std::pair<const char*, std::int64_t>> stages);

/// A native call that this process runs, for its function.
/// Thread safety: the GIL.
class RunningCall {
 public:
  RunningCall(nb::object agent, std::uint32_t caller, std::uint32_t session, std::uint64_t number,
              std::string function, Deadline deadline, rpc::GroupId root);

  /// Returns the call that this thread runs, or null outside of a call.
  static RunningCall* current() noexcept { return this_thread().running; }

  std::uint32_t caller_id() const noexcept { return caller_; }
  std::uint64_t number() const noexcept { return number_; }
  const std::string& function() const noexcept { return function_; }
  Deadline deadline() const noexcept { return deadline_; }
  bool is_cancelled() const noexcept { return is_cancelled_; }
  std::int64_t taken_ns() const noexcept { return taken_ns_; }
  nb::object caller() const;
  /// Returns the first of the calls that led to this one, whose trace all of them have.
  rpc::GroupId root() const noexcept { return root_; }
  /// Returns the name in the logs of both sides of the call and of the calls that its function makes.
  nb::object trace() const;
  /// Returns the seconds until the deadline, or None without a deadline.
  nb::object remaining() const { return seconds_until(deadline_); }
  /// Throws Cancelled if the caller has cancelled the call, Timeout after the deadline.
  void check() const;
  void cancel();
  /// Calls the hook when the call is cancelled, or at once if the call is cancelled already.
  void on_cancel(nb::object hook);
  nb::dict describe() const;

  int traverse(visitproc visit, void* arg);
  void clear();

 private:
  friend class RunningCalls;
  friend class CallScope;

  nb::object agent_;
  const std::uint32_t caller_, session_;
  const std::uint64_t number_;
  const std::string function_;
  const Deadline deadline_;
  const rpc::GroupId root_;
  const std::int64_t taken_ns_;
  std::int64_t running_ns_ = 0;  ///< 0 before the function runs
  bool is_cancelled_ = false;
  std::vector<nb::object> hooks_;
};

/// The native calls that this process runs, and the calls that were cancelled before they began.
/// Thread safety: the GIL.
class RunningCalls {
 public:
  void add(nb::object call);
  void remove(const RunningCall& call);
  /// Cancels a running call, or records the cancellation of a call that has not begun.
  void cancel(std::uint32_t caller, std::uint64_t number);
  /// Cancels all calls of a session with a member.
  void cancel_of(std::uint32_t caller, std::uint32_t session);
  nb::list describe() const;
  int traverse(visitproc visit, void* arg) const;

 private:
  static constexpr std::size_t kMaxEarly = 4096;

  std::vector<nb::object> calls_;
  std::deque<std::pair<std::uint32_t, std::uint64_t>> early_;
};

/// Makes a call the current call of this thread for a block.
class CallScope {
 public:
  CallScope(RunningCalls& calls, nb::object call);
  CallScope& operator=(CallScope&&) = delete;
  ~CallScope();

 private:
  ThreadState& thread_;
  RunningCalls& calls_;
  const nb::object call_;
  RunningCall* const outer_;
};

// --- the context of distributed autograd that this thread runs in

/// Sets the context of a thread, or None. The context records the tensors that are sent and received. Returns the
/// previous context.
nb::object swap_context(ThreadState& thread, nb::object context);

/// Makes a context, or None, the context of this thread for a block.
class ContextScope {
 public:
  explicit ContextScope(nb::object context)
      : thread_(this_thread()), before_(swap_context(thread_, std::move(context))) {}
  ContextScope& operator=(ContextScope&&) = delete;
  ~ContextScope() { swap_context(thread_, std::move(before_)); }

 private:
  ThreadState& thread_;
  nb::object before_;
};

void init_running_call(nb::module_& m);

}  // namespace onecopy::python
