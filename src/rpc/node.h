// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "onecopy/share/stats.h"
#include "os/mutex.h"
#include "rpc/calls.h"
#include "rpc/completion_waiter.h"
#include "rpc/functions.h"
#include "rpc/member.h"
#include "rpc/spin_times.h"
#include "rpc/transport.h"
#include "rpc/work.h"

namespace onecopy {
class Session;
}

namespace onecopy::rpc {

class RingTransport;

struct NodeOptions {
  std::string name;
  std::uint32_t number = 0;
  /// The time that a thread looks at the lanes before it sleeps; negative for the value of ONECOPY_RPC_SPIN_US, or the
  /// default.
  std::chrono::nanoseconds spin{-1};
  /// The transport to other hosts, "tls" or "ucx"; empty for the value of ONECOPY_RPC_FABRIC.
  std::string transport{};
  /// Lets a process take the place of any member of its name and number that has ended. False where members hold
  /// references, whose ids a process that starts again would give out once more.
  bool members_may_restart = false;
};

/// A process as a member of a group: sends calls, gives out the calls of others as work, and knows which members live.
/// A Node runs no function and starts no thread: threads that wait for calls, and workers that ask for work, look at
/// the lanes.
///
/// Thread safety: all members may be called concurrently, but for the destructor.
/// Invariants: a call completes once. A lane is read in order. A member's calls fail once its lane has been read to the
/// end, to its farewell, or to a damaged message. No lock is held while waiting, except turn_, which the thread that
/// looks at the lanes holds.
class Node final : private TransportHost {
 public:
  /// Throws out_of_memory, out_of_descriptors, out_of_mappings.
  explicit Node(NodeOptions options);
  ~Node() override;

  const std::string& name() const noexcept { return options_.name; }
  std::uint32_t number() const noexcept { return options_.number; }
  /// Returns what others join(). Valid until the node's end.
  Address address() override;
  /// Adds a member, which may be this process. The first call to the member connects to it. Throws peer_died if the
  /// member has already ended, and invalid_argument if another member has its number. If `may_restart`, a process
  /// may take the member's place after its end, and the member that of one of its name and number that has ended.
  Member& join(const Address& address, bool may_restart = false);
  /// Returns the last session with the member of that number, or with the latest living member of that name; null if
  /// there is none.
  Member* find(std::uint32_t number);
  Member* find(std::string_view name);
  /// Returns the session in which a member is called: the last one, or a new one if the connection of the last one was
  /// cut.
  Member& session_with(Member& known);
  /// Connects to the member if its connection was lost. Returns false if the member has left or no process listens at
  /// its address, and true for a member that does not answer.
  bool may_return(Member& member, Deadline deadline);

  /// Connects to a member, unless it is connected. Throws peer_died, timeout.
  void connect(Member& to, Deadline deadline);

  /// Returns the functions that this process calls in other members, and that they call here.
  Functions& functions() noexcept { return functions_; }

  // Calls. `message` is the body, with its form in the tag; a tail is appended.
  struct CallRequest {
    Message message;
    FunctionEntry& function;
    bool is_in_order = false;
    Stream stream{};
    void* owner = nullptr;  ///< becomes Call::owner, unless call() throws
    void (*drop_owner)(void*) noexcept = nullptr;
    CallContext context{};
    void* arguments = nullptr;  ///< becomes Call::arguments of a call that this process makes to itself
  };
  /// Sends a call. Throws closed after stop(), peer_died if the member has ended, timeout if another host has not
  /// received the call by its deadline, and what Connection::send() throws. After an error the call was not sent.
  CallRef call(Member& to, CallRequest&& call, Deadline deadline);
  /// Queues the call's completion for a worker unless a thread is waiting when the call ends. Returns false if the call
  /// has already ended. Without want() an answer stays in its lane until a thread waits, and wakes no worker.
  bool want(const CallRef& call) noexcept { return waiter_.want(*call); }
  /// Returns whether the call has ended, after a look at the lanes.
  bool has_ended(const CallRef& call);
  /// Handles the messages that are in the lanes.
  void look_once();
  void note(Member& to, Message&& message, Stream stream = {});
  /// Answers a call. Has no effect if the caller has ended, expects no answer, or has not received the answer by the
  /// call's deadline.
  void answer(Member& to, std::uint64_t call, Status status, Message&& message, bool is_in_order = false,
              Stream stream = {}, Deadline deadline = kForever, const CallContext& context = {});
  /// Returns a wanted call that is sent to no member: end_call() or its deadline ends it.
  CallRef begin_here(Deadline deadline, void* owner, void (*drop_owner)(void*) noexcept);
  /// Returns a call of this process that is under way, or null.
  CallRef find_call(std::uint64_t number) { return calls_.find(number); }
  /// Removes a call from the table and returns it, or null. The caller has to complete the call.
  CallRef take_call(std::uint64_t number) { return calls_.take(number); }
  /// Ends a call. Returns false if the call had already ended.
  bool end_call(const CallRef& call, End end);
  /// Waits for the call as CompletionWaiter::wait() does.
  bool wait(const CallRef& call, Deadline until);
  /// Completes a call. Returns false if the call had already ended.
  bool complete(const CallRef& call, End end, Status status = Status::value, Message&& answer = {});
  std::size_t calls_under_way() const noexcept { return calls_.count(); }

  // Workers. Each asks for work, does it, and asks again.
  /// Waits for work. Returns false when the worker must end: after stop(), or because enough other workers are idle.
  bool next(Work& work);
  /// Notes that the worker has done the work that next() gave it.
  void end_work() noexcept { ended_.fetch_add(1); }
  /// Does work of kind service: answers the greetings of other members and waits until they can be called, or opens the
  /// memory of the first message in a lane.
  void serve(const Work& work) noexcept;
  /// Takes work for a worker that waits within its own work. Returns false while a worker is idle, or there is no work.
  bool try_help(Work& work);
  /// Returns whether there is work, and no worker is free.
  bool lacks_workers() const { return wants_worker() && has_work(); }
  /// Lets the next work in order begin. `asks_next`: the worker calls next() right after this call.
  void end_order(bool asks_next = false) noexcept;
  /// Returns whether another worker must be started, since all are at work.
  bool wants_worker() const noexcept { return idle_.load() == 0 && !is_stopped(); }
  int idle_workers() const noexcept { return idle_.load(); }

  /// Leaves the group: tells the other members, fails the calls under way, ends the workers, and gives back the lanes and the
  /// connections to processes of which no memory is held here.
  void stop();
  bool is_stopped() const noexcept override { return is_stopped_.load(); }

 private:
  using MemberList = std::vector<Member*>;

  // node.cpp
  void make_transports();
  void check_can_send(const Member& to) const;
  bool can_answer(Member& to, Deadline deadline);
  void wait_for_room(Member& to, Deadline deadline);
  Connection& lane_of(const LaneGuard& guard, const Member& to) const;
  void put(Member& to, Connection& out, CallRequest& call, CallTail tail, Deadline deadline);
  void note_time(Call& call) const noexcept;

  // node_members.cpp
  Member& enter(const Address& address) override;
  Member& next_session(Member& ended) override;
  Member& enter_locked(const Address& address, bool may_restart) REQUIRES(members_mutex_);
  Member& begin_session(Member& ended, const Address& address) REQUIRES(members_mutex_);
  void serve_if_all_are_busy() noexcept;
  Member& add(std::unique_ptr<Member> member) REQUIRES(members_mutex_);
  void note_opened(Member& member) noexcept override;
  const std::shared_ptr<const DoorbellMemory>& bell() const noexcept override { return bell_; }
  bool is_own(const Address& address) const;
  void connect_to_self(Member& me);
  void watch_over(Member& member);
  bool try_release(Member& member);
  void release_all(Deadline deadline);
  void say_farewell(Member& to, Deadline deadline) noexcept;

  // node_report.cpp
  GroupInfo describe() const;

  // node_lanes.cpp
  /// Keeps the lanes of members that have not ended. Made before has_ended is read: a lane is released when the count
  /// is 0.
  struct Looker {
    explicit Looker(std::atomic<int>& of) : count(of) { count.fetch_add(1); }
    Looker& operator=(Looker&&) = delete;
    ~Looker() { count.fetch_sub(1); }
    std::atomic<int>& count;
  };
  bool are_lanes_ready() const {
    return watch_lanes(1, [] { return false; });
  }
  template <class Stop>
  bool watch_lanes(int looks, Stop&& stop) const;
  bool has_message() const;
  /// Handles the messages in the lanes, unless another thread does. Returns false if there was no message. `own` gets
  /// the first work.
  bool poll(const Call* mine, Work* own = nullptr);
  void look_for_damage();
  void end_damaged(Member& member);
  bool read(Member& from, const Call* mine, std::optional<Message> first = {});
  std::optional<Message> take(Member& from, Inbound& in);
  void hold_back(Member& from);
  void open_first(Member& from) noexcept;
  void hand_out_newcomers();
  void handle(Member& from, Message&& message, const Call* mine);
  FunctionEntry& function_of(Member& from, const CallTail& tail, Bytes& data);
  void handle_call(Member& from, Message&& message, bool is_in_order);
  void handle_answer(Member& from, Message&& message, bool is_in_order, const Call* mine);
  void handle_note(Member& from, Message&& message);
  void end(Member& member);
  void fail(const std::vector<CallRef>& calls, End end);
  void expire();

  // node_work.cpp
  void hand_out(Work&& work);
  void give_out(Work&& work);
  bool is_back_soon(const Work& work) const;
  bool has_work() const { return work_.is_ready() || is_stopped() || are_lanes_ready(); }
  void leave_to_busy_workers() const;
  bool spin_for_work(bool& watches);
  void stop_spinning_if_crowded(std::size_t members) noexcept;
  void end_watch(bool& watches) noexcept;
  bool sleep_for_work();
  bool look_for_work(Work& work);
  bool try_retire() noexcept;

  const NodeOptions options_;
  Session& session_;  ///< a forked child has its own
  const std::shared_ptr<const DoorbellMemory> bell_;
  Functions functions_;
  Calls calls_;
  CompletionWaiter waiter_;
  WorkQueue work_;
  const SpinTimes spin_;
  std::atomic<std::chrono::nanoseconds> work_spin_;  ///< how long the spinning worker spins

  mutable Mutex members_mutex_;
  std::vector<std::unique_ptr<Member>> members_ GUARDED_BY(members_mutex_);
  /// Keeps all lists ever made, because a reader may still use an old one.
  std::vector<std::unique_ptr<const MemberList>> lists_;
  std::atomic<const MemberList*> list_;

  Mutex turn_;                               ///< held by the thread that looks at the lanes
  std::size_t first_ GUARDED_BY(turn_) = 0;  ///< the index of the member whose lane is read first
  Work* own_ GUARDED_BY(turn_) = nullptr;    ///< gets the first work, if a worker looks at the lanes

  /// The number of threads that use the lanes of living members without the turn.
  mutable std::atomic<int> lookers_{0};
  std::atomic<int> idle_{0};
  std::atomic<std::uint32_t> begun_{0},
      ended_{0};  ///< counts of work that workers have taken, and have done
  std::atomic<int> sleepers_{0};
  /// The first sleeper sleeps on the bell; further ones sleep in reserve and are woken after it.
  std::atomic<bool> has_first_sleeper_{false};
  std::atomic<bool> is_spinning_{false};  ///< at most one worker spins
  std::atomic<bool> is_crowded_{false};   ///< no thread spins, see stop_spinning_if_crowded()
  /// The last caller that was answered runs on the same processor.
  std::atomic<bool> shares_processor_{false};
  std::atomic<bool> is_stopped_{false};
  std::vector<std::unique_ptr<Transport>> transports_;  ///< a member gets the first one that reaches it
  RingTransport* ring_ = nullptr;                       ///< owned by transports_
  std::uint64_t report_ = 0;                            ///< the node's number in this process's listings
};

/// Looks at the lanes up to `looks` times, until stop() returns true. Returns whether there is a message.
template <class Stop>
bool Node::watch_lanes(int looks, Stop&& stop) const {
  const Looker looker(lookers_);
  while (!has_message()) {
    if (--looks == 0 || stop()) return false;
    relax();
  }
  return true;
}

}  // namespace onecopy::rpc
