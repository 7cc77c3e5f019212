// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>

#include "onecopy/channel/queue.h"
#include "onecopy/device/stream.h"
#include "os/deadline.h"
#include "rpc/address.h"

namespace onecopy::rpc {

struct Member;
class DoorbellMemory;

/// A connection that sends the messages of all threads of this process to one member, in the order of the calls.
/// Thread safety: all members may be called concurrently.
class Connection {
 public:
  Connection& operator=(Connection&&) = delete;
  virtual ~Connection() = default;

  /// Sends the head and the tensors of a message, in the order of `stream`, as queues do. What the caller writes into
  /// the tensors afterwards may or may not arrive. Wakes no thread: the caller must call ring_for_call() or
  /// ring_for_answer(). Throws closed, out_of_memory, and timeout if the message was not accepted by the deadline.
  virtual void send(const Message& message, Stream stream, Deadline deadline) = 0;
  /// Returns whether the member has so many unread messages that calls have to wait. Answers never wait.
  virtual bool is_full() noexcept { return false; }
  /// Wakes a worker of the member.
  virtual void ring_for_call() const noexcept {}
  /// Wakes a thread of the member that waits for an answer; if there is none, a worker.
  virtual void ring_for_answer() const noexcept {}
  /// Returns whether the threads of the member that listen for calls, or for answers, run on this thread's processor,
  /// and so only once this thread sleeps. A thread that would wait for them does not spin.
  virtual bool worker_shares_cpu() const noexcept { return false; }
  virtual bool waiter_shares_cpu() const noexcept { return false; }
  /// Returns whether tensors of cards are sent from the card's memory.
  virtual bool takes_cards() const noexcept { return true; }
  /// Releases the tensors of messages that the member will not read because it has ended.
  virtual void drop_sent() noexcept {}
};

/// The state that a transport keeps with a member. The member's mutex `opening` guards the state.
struct TransportState {
  virtual ~TransportState() = default;
};

/// A way to reach members: shared memory within a host (RingTransport), TLS between hosts (TlsTransport). A transport
/// opens connections to members, puts the messages of a member into its `inbound` lane, and reports the member's end.
///
/// Thread safety: all members may be called concurrently, but for the destructor.
/// Invariant: a member keeps its transport. `member.exit` is set, and the bells of this process are rung, once no further
/// message of the member comes.
class Transport {
 public:
  Transport& operator=(Transport&&) = delete;
  virtual ~Transport() = default;

  /// Returns the name: "ring", "tls" or "ucx".
  virtual std::string_view name() const noexcept = 0;
  /// Returns whether members can map each other's memory, so that tensors can be lent.
  virtual bool shares_memory() const noexcept = 0;
  /// Returns whether the transport reaches a member of that address.
  virtual bool reaches(const Address& address) const = 0;
  /// Adds to this process's address what others need to reach it by this transport.
  virtual void complete(Address& own) = 0;

  /// Returns whether a member whose session has ended may be connected to again, since its process may live.
  virtual bool reconnects() const noexcept { return false; }

  /// Starts watching a member that no other thread sees yet, and creates its TransportState. Throws bad_secret and
  /// unsupported for a member that has another key or fabric, or does not listen.
  virtual void watch(Member& member) = 0;
  /// Opens a connection to the member, or begins to, in which case another thread completes `member.opened`. Callers
  /// repeat the call until the member is opened. Throws peer_died, timeout, bad_secret.
  virtual void open(Member& member, Deadline deadline) = 0;
  /// Tells a member without a connection that this process leaves the group, if the transport can.
  virtual void say_farewell(Member&, Deadline) {}
  /// Returns whether the member's process has ended, although `member.exit` may not be set yet.
  virtual bool has_exited(Member&) const { return false; }
  /// Closes the connections to a member that has ended. The thread that looks at the lanes calls it.
  virtual void close(Member& member) noexcept = 0;
  /// Returns for how long the member has been silent although it should have sent something; 0 if it is not silent.
  virtual std::chrono::seconds silence_of(Member&) const { return std::chrono::seconds{0}; }

  /// Waits up to a second until all messages that were sent have arrived.
  virtual void flush() noexcept {}
  /// Closes all connections and ends the transport's threads.
  virtual void stop() noexcept {}
};

/// The services of a node that its transports use.
/// Thread safety: all members may be called concurrently.
class TransportHost {
 public:
  virtual ~TransportHost() = default;
  /// Returns the address of this process.
  virtual Address address() = 0;
  virtual const std::shared_ptr<const DoorbellMemory>& bell() const noexcept = 0;
  /// Adds the member of that address, if it is new, and returns it. Throws invalid_argument.
  virtual Member& enter(const Address& address) = 0;
  /// Returns the session after one that receives no further message. Begins it if it has not begun.
  virtual Member& next_session(Member& ended) = 0;
  /// Notes that a connection to the member is open.
  virtual void note_opened(Member& member) noexcept = 0;
  virtual bool is_stopped() const noexcept = 0;
  /// Returns a function for any thread that sets `member.exit` and rings the bells.
  std::function<void()> end_of(const Member& member) const;
};

}  // namespace onecopy::rpc
