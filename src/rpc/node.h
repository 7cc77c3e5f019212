// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
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
  /// The time for which a thread looks at the lanes before it sleeps; negative: as ONECOPY_RPC_SPIN_US says, or the usual.
  std::chrono::nanoseconds spin{-1};
  std::string transport{};  ///< to other hosts: "tls" or "ucx"; empty: as ONECOPY_RPC_FABRIC says
};

/// A process as a member of a group: sends calls, gives out the calls of others as work, and knows which members live.
/// A Node runs no function and starts no thread: threads that wait for calls, and workers that ask for work, look at
/// the lanes.
///
/// Thread safety: all members may be called concurrently, but for the destructor.
/// Invariants: a call completes once. A lane is read in order, and a member that ends has its lane read to the end before
/// its calls fail. No lock is held while waiting, but the turn, by one thread at a time, while it looks at the lanes.
class Node final : private TransportHost {
 public:
  /// Throws out_of_memory, out_of_descriptors, out_of_mappings.
  explicit Node(NodeOptions options);
  ~Node() override;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string& name() const noexcept { return options_.name; }
  std::uint32_t number() const noexcept { return options_.number; }
  /// Returns what others join(). Valid until the node's end.
  Address address() override;
  /// Enters another member, or this process. Connects to it at the first call. Throws peer_died when it has ended already,
  /// invalid_argument when the number is another member's.
  Member& join(const Address& address);
  /// Returns the last session with the member of that number, or with the living one that joined first under that name; null
  /// when there is none.
  Member* find(std::uint32_t number);
  Member* find(std::string_view name);
  /// Returns the session in which a member is called: the last one, or a new one where that was cut.
  Member& session_with(Member& known);
  /// Returns whether the member lives as far as can be known: it is connected to, connects again now, or does not answer. False:
  /// it has left, or no process listens there.
  bool may_return(Member& member, Deadline deadline);

  /// Makes the lanes to a member, where there are none yet: at the first call to it. Throws peer_died, timeout.
  void connect(Member& to, Deadline deadline);

  /// The functions that this process calls, and that others call here.
  Functions& functions() noexcept { return functions_; }

  // Calls. `message` is the body, with its form in the tag; a tail is appended.
  struct CallRequest {
    Message message;
    FunctionEntry& function;
    bool is_in_order = false;
    Stream stream{};
    void* owner = nullptr;  ///< of the call, unless it throws
    void (*drop_owner)(void*) noexcept = nullptr;
    CallContext context{};
    void* arguments = nullptr;  ///< of a call to this process that stays here: as the owner
  };
  /// Sends a call. Throws closed after stop(), peer_died when the member has ended, timeout when another host has not taken
  /// it by its deadline, and what putting throws: the call was not sent then.
  CallRef call(Member& to, CallRequest&& call, Deadline deadline);
  /// Queues the call's end for a worker unless a thread waits for the call when it ends. Returns false when the call has ended.
  /// Before want() an answer stays in its lane, and costs no other thread anything.
  bool want(const CallRef& call) noexcept { return waiter_.want(*call); }
  /// Returns whether the call has ended, after a look at the lanes.
  bool has_ended(const CallRef& call);
  /// Handles the messages that are in the lanes.
  void look_once();
  void note(Member& to, Message&& message, Stream stream = {});
  /// Answers a call. Without effect when the caller has ended, no thread waits, or another host has not taken the answer
  /// by the call's deadline.
  void answer(Member& to, std::uint64_t call, Status status, Message&& message, bool is_in_order = false,
              Stream stream = {}, Deadline deadline = kForever, const CallContext& context = {});
  /// A wanted call that crosses to no member: end_call() ends it, or its deadline.
  CallRef begin_here(Deadline deadline, void* owner, void (*drop_owner)(void*) noexcept);
  /// Returns a call of this process that is under way, or null.
  CallRef find_call(std::uint64_t number) { return calls_.find(number); }
  /// Takes a call that the caller of this completes.
  CallRef take_call(std::uint64_t number) { return calls_.take(number); }
  /// Ends a call from here. False when it has ended already.
  bool end_call(const CallRef& call, End end);
  /// Does what CompletionWaiter::wait() does: returns false after a slice.
  bool wait(const CallRef& call, Deadline until);
  /// Ends a call that has not ended.
  bool complete(const CallRef& call, End end, Status status = Status::value, Message&& answer = {});
  std::size_t calls_under_way() const noexcept { return calls_.count(); }

  // Workers. Each asks for work, does it, and asks again.
  /// Waits for work. Returns false when the worker has to end: after stop(), and when more workers than a few have had nothing
  /// to do for a while.
  bool next(Work& work);
  /// Does the work `greeting`: answers the greetings of other members, which can be called then. Waits for these members.
  void take_greetings() noexcept;
  /// Takes work for a worker that waits within its own work. Returns false while a worker is idle, or there is no work.
  bool try_help(Work& work);
  /// Lets the next work that is in order begin. `asks_next`: the worker asks for work right after this call.
  void end_order(bool asks_next = false) noexcept;
  /// Returns whether another worker must be started, since all are at work.
  bool wants_worker() const noexcept { return idle_.load() == 0 && !is_stopped(); }
  int idle_workers() const noexcept { return idle_.load(); }

  /// Leaves the group: tells the others, and fails the calls under way. Workers end.
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
  Member& add(std::unique_ptr<Member> member) REQUIRES(members_mutex_);
  void note_opened(Member& member) noexcept override;
  const std::shared_ptr<const DoorbellMemory>& bell() const noexcept override { return bell_; }
  bool is_own(const Address& address) const;
  void connect_to_self(Member& me);
  void watch_over(Member& member);
  void release_lanes(Member& member);
  void say_farewell(Member& to, Deadline deadline) noexcept;

  // node_report.cpp
  GroupInfo describe() const;

  // node_lanes.cpp
  bool are_lanes_ready() const {
    return watch_lanes(1, [] { return false; });
  }
  template <class Stop>
  bool watch_lanes(int looks, Stop&& stop) const;
  bool has_message() const;
  /// Handles the messages in the lanes, unless another thread does. False when there was nothing. `own` gets the first work.
  bool look(const Call* mine, Work* own = nullptr);
  void look_for_damage();
  void end_damaged(Member& member);
  bool read(Member& from, const Call* mine);
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
  bool spin_for_work();
  bool sleep_for_work();
  bool look_for_work(Work& work);
  bool try_retire() noexcept;

  const NodeOptions options_;
  Session& session_;  ///< a forked child has another
  const std::shared_ptr<const DoorbellMemory> bell_;
  Functions functions_;
  Calls calls_;
  CompletionWaiter waiter_;
  WorkQueue work_;
  const SpinTimes spin_;
  std::atomic<std::chrono::nanoseconds> work_spin_;  ///< of the worker that spins

  mutable Mutex members_mutex_;
  std::vector<std::unique_ptr<Member>> members_ GUARDED_BY(members_mutex_);
  std::vector<std::unique_ptr<const MemberList>>
      lists_;  ///< all that ever were: a reader may have an old one
  std::atomic<const MemberList*> list_;

  Mutex turn_;                               ///< of the thread that looks at the lanes
  std::size_t first_ GUARDED_BY(turn_) = 0;  ///< which member is looked at first
  Work* own_ GUARDED_BY(turn_) = nullptr;    ///< for the first work, of the worker that looks

  mutable std::atomic<int> lookers_{0};  ///< threads in watch_lanes(), which use lanes of members that live
  std::atomic<int> idle_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> has_first_sleeper_{false};  ///< the others sleep in reserve
  std::atomic<bool> is_spinning_{false};        ///< one worker spins at most
  std::atomic<bool> shares_processor_{false};   ///< with the last caller that was answered
  std::atomic<bool> is_stopped_{false};
  std::vector<std::unique_ptr<Transport>> transports_;  ///< the first one that reaches a member is used
  RingTransport* ring_ = nullptr;                       ///< one of them
  std::uint64_t report_ = 0;                            ///< its place in this process's listings
};

/// Looks at the lanes up to `looks` times, until stop() returns true. Returns whether there is a message.
template <class Stop>
bool Node::watch_lanes(int looks, Stop&& stop) const {
  struct Looker {
    explicit Looker(std::atomic<int>& of) : count(of) { count.fetch_add(1); }
    ~Looker() { count.fetch_sub(1); }
    std::atomic<int>& count;
  } const looker(lookers_);  // before the looks at has_ended: a lane goes when there is none
  while (!has_message()) {
    if (--looks == 0 || stop()) return false;
    relax();
  }
  return true;
}

}  // namespace onecopy::rpc
