// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __cplusplus <= 201703L
#error "onecopy needs C++20: compile with -std=c++20, or with CMake link onecopy::onecopy"
#endif

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "onecopy/core/api.h"
#include "onecopy/core/bytes.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/rpc/value.h"

ONECOPY_API_BEGIN
namespace onecopy::rpc {

/// The arguments or the result of a call: bytes, and tensors that are not copied. A tensor is lent: caller and callee
/// use the same memory, each for as long as it holds the tensor.
struct Values {
  Bytes data;
  std::vector<Tensor> tensors;
};

/// A function that the other members may call. The function runs in the called process, on a thread of its agent. What it
/// throws is thrown at the caller: an Error with its code, any other object as remote_error.
using Function = std::function<Values(Values&&)>;

/// A function of plain values, callable from C++ and from Python; runs and throws as a Function does. Its tensors are
/// copies that the function may keep, or are lent by a caller in C++.
using PlainFunction = std::function<Value(const Value::List& arguments)>;

struct AgentOptions {
  std::string name;  ///< the member's name, unique in its group
  /// The member's number, unique in its group, to which the ranks of processes in Python belong. A program that has ended
  /// and starts again may use its name and number.
  std::uint32_t number = 0;
  /// The timeout of calls that name none; zero means no limit.
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  /// The time for which a thread polls for a message before it sleeps; polling is faster than waking a process. A
  /// negative value means ONECOPY_RPC_SPIN_US, or 100 µs. Zero means that the thread sleeps at once.
  std::chrono::nanoseconds spin{-1};
  /// The max number of threads that run functions. When all are taken, a function that waits in call() or Future::get()
  /// runs other functions while it waits, in up to half of its stack. If all of them have used theirs, one more thread is
  /// started, so that calls that wait for each other cannot exhaust the threads.
  std::size_t max_workers = 1024;
  /// The transport to other hosts: "tls", or "ucx", which does not encrypt. An empty text means the value of
  /// ONECOPY_RPC_FABRIC, or "tls". All members of a group need the same one.
  std::string transport{};
};

/// The result of a call that may be in progress. Destroying the Future does not end the call. REQUIRES: the agent
/// outlives it. Thread safety: all members may be called concurrently, except moving. Move-only: members of a Future that
/// was moved from throw closed.
class Future {
 public:
  Future(Future&&) noexcept;
  Future& operator=(Future&&) noexcept;
  ~Future();

  /// Waits for the result and returns it. Throws the function's exception (an Error as it was, anything else as
  /// remote_error), timeout at the call's deadline, and peer_died if the member has ended; the function may have run
  /// then, and is not run again. REQUIRES: called only once.
  Values get();
  /// Returns whether the call completes within the timeout.
  bool wait_for(std::chrono::nanoseconds timeout);
  bool is_ready() const;

 private:
  friend class Agent;
  struct State;
  explicit Future(std::unique_ptr<State> state) noexcept;
  State& state() const;
  std::unique_ptr<State> state_;
};

/// A member of a group of processes of one user that call each other's functions. Members on other hosts need
/// ONECOPY_RPC_KEY (docs/guides/rpc.md).
///
/// A call runs at most once: it is never sent again. A thread that waits for a reply takes the reply from shared memory
/// itself. The agent's threads run functions, each on the thread that received the call. A new thread starts whenever
/// all are busy, so a function may call back and wait, at any depth.
///
/// A forked child must not use the agent it inherited. Thread safety: all members may be called concurrently, except
/// moving. Move-only: members of an Agent that was moved from throw closed. The destructor shuts the agent down.
class Agent {
 public:
  /// Starts an agent. Throws out_of_memory, out_of_descriptors, out_of_mappings, and invalid_argument for an empty
  /// name.
  explicit Agent(AgentOptions options);
  Agent(Agent&&) noexcept;
  Agent& operator=(Agent&&) noexcept;
  ~Agent();

  const std::string& name() const;
  /// Returns the address that other members pass to join(). The address may reach them in any way, and names this
  /// process while the agent lives.
  Bytes address() const;
  /// Adds the member with that address, which may be this process itself, and returns its name. The first call
  /// connects. Throws bad_handle, version_mismatch, invalid_argument if another member that lives has the same number,
  /// and, for a member on another host, bad_secret if it has another key and unsupported if it cannot be reached.
  std::string join(ByteSpan address);

  /// Registers `function` for calls by that name, in place of a function registered before by either of the two.
  void define(std::string_view name, Function function);
  void define_plain(std::string_view name, PlainFunction function);

  /// Calls a function of a member that has joined. A `timeout` of zero means the agent's own, a negative one no limit.
  /// Throws invalid_argument for an unknown member, peer_died for a member that has ended, closed after shutdown(), and
  /// what Future::get() throws.
  Values call(std::string_view member, std::string_view function, Values&& arguments = {},
              std::chrono::nanoseconds timeout = {});
  /// Starts a call without waiting for the reply. If it throws, nothing was sent.
  Future call_async(std::string_view member, std::string_view function, Values&& arguments = {},
                    std::chrono::nanoseconds timeout = {});

  /// Calls a plain function: one of a C++ program by its name, one of a Python program as "module:name". Throws what
  /// call() throws, invalid_argument for values that cannot be encoded, and unsupported for a result that a Value
  /// cannot hold.
  Value call_plain(std::string_view member, std::string_view function, Value::List arguments = {},
                   std::chrono::nanoseconds timeout = {});

  /// Returns the number of calls of this process that await a reply.
  std::size_t calls_under_way() const;
  /// Leaves the group. Other members learn of it: pending calls throw closed here and peer_died there. Returns when
  /// none of this agent's functions is running; called from one of them, it returns at once.
  void shutdown();

 private:
  friend class Future;
  struct State;
  State& state() const;
  std::unique_ptr<State> state_;
};

}  // namespace onecopy::rpc
ONECOPY_API_END
