// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __cplusplus <= 201703L
#error "onecopy needs C++20: compile with -std=c++20, or with CMake link onecopy::onecopy"
#endif

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "onecopy/core/bytes.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/rpc/value.h"

namespace onecopy::rpc {

/// Arguments of a call, or its result: bytes, and tensors that are not copied. A tensor is lent: caller and callee see
/// the same memory, each as long as it has the tensor.
struct Values {
  Bytes data;
  std::vector<Tensor> tensors;
};

/// Runs in the process that is called, on a thread of its agent. Its exceptions are thrown at the caller.
using Function = std::function<Values(Values&&)>;

/// A function of plain values, for callers in C++ and in Python; runs and throws as a Function. Its tensors are copies
/// that the function may keep, or lent by a caller in C++.
using PlainFunction = std::function<Value(const Value::List& arguments)>;

struct AgentOptions {
  std::string name;          ///< of this member, unique in its group
  std::uint32_t number = 0;  ///< of this member, unique in its group
  /// The timeout of calls without one of their own; zero: none.
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  /// The time for which a thread polls for a message before it sleeps: the time that it takes to wake a process is
  /// well spent looking. Negative: as the environment's ONECOPY_RPC_SPIN_US says, or 100 µs; zero: sleeps at once.
  std::chrono::nanoseconds spin{-1};
  /// Threads that run functions, at most. A function that waits for a call of its own runs others' meanwhile when all
  /// are taken, so that calls which wait for each other do not use them up.
  std::size_t most_workers = 1024;
};

/// The result of a call that may be under way. Letting go of it does not end the call. REQUIRES: the agent outlives it.
/// Thread safety: all members may be called concurrently, but for moving. Move-only.
class Future {
 public:
  Future(Future&&) noexcept;
  Future& operator=(Future&&) noexcept;
  ~Future();

  /// Waits. Throws the function's exception (as remote_error, or the Error that it was), timeout at the call's
  /// deadline, and peer_died when the member has ended. The function may have run then, and is not run again. May be
  /// called once.
  Values get();
  /// Is the outcome there within that time?
  bool wait_for(std::chrono::nanoseconds timeout);
  bool is_ready() const;

 private:
  friend class Agent;
  struct State;
  explicit Future(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// This process as a member of a group of processes of one user, that call functions of each other. Those on other
/// hosts need ONECOPY_RPC_KEY (docs/guides/rpc.md).
///
/// A call is at most once: it is never sent again. A thread that waits for its answer takes it from shared memory
/// itself. Threads of the agent run functions, each on the thread that took the call. Whenever all of them run
/// something, there is one more. So a function may call back, and wait, at any depth.
///
/// Does not survive fork(): a child may not use it. Thread safety: all members may be called concurrently, but for
/// moving. Move-only; destroying it shuts it down.
class Agent {
 public:
  /// Throws out_of_memory, out_of_descriptors, out_of_mappings, invalid_argument for an empty name.
  explicit Agent(AgentOptions options);
  Agent(Agent&&) noexcept;
  Agent& operator=(Agent&&) noexcept;
  ~Agent();

  const std::string& name() const noexcept;
  /// Returns the address that others pass to join(): they may get it in any way. It names this process while the
  /// agent lives.
  Bytes address() const;
  /// Enters the member of that address, or this process itself. Connects at the first call. Returns the member's name.
  /// Throws bad_handle, version_mismatch, invalid_argument when its number is another's.
  std::string join(ByteSpan address);

  /// Members may call `function` by that name from here on. In place of one that was there.
  void define(std::string name, Function function);
  void define_plain(std::string name, PlainFunction function);

  /// Calls a function of a member that has joined. `timeout` of zero: the agent's own; negative: none.
  /// Throws invalid_argument for an unknown member, peer_died for one that has ended, closed after shutdown(), and what
  /// Future::get() throws.
  Values call(std::string_view member, std::string_view function, Values&& arguments = {},
              std::chrono::nanoseconds timeout = {});
  /// Begins a call() without waiting for the answer. Throws before anything was sent, or not at all.
  Future call_async(std::string_view member, std::string_view function, Values&& arguments = {},
                    std::chrono::nanoseconds timeout = {});

  /// Calls a plain function: one of a program in C++ by its name, one of a program in Python as "module:name". Throws
  /// as call(), invalid_argument for values that cannot be written, unsupported for a result that Value cannot hold.
  Value call_plain(std::string_view member, std::string_view function, Value::List arguments = {},
                   std::chrono::nanoseconds timeout = {});

  /// Calls of this process that have no answer yet.
  std::size_t calls_under_way() const;
  /// Leaves the group: the others learn of it, calls under way throw closed here and peer_died there. Returns when no
  /// function runs here; called by a function that this agent runs, it returns at once.
  void shutdown();

 private:
  friend class Future;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onecopy::rpc
