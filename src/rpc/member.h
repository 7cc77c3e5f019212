// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "os/mutex.h"
#include "rpc/address.h"
#include "rpc/call.h"
#include "rpc/functions.h"
#include "rpc/ring/lane.h"

namespace onecopy::rpc {

/// A set of the functions whose names a member was told, by the numbers of this process.
/// Thread safety: all members may be called concurrently.
class ToldNames {
 public:
  bool has(std::uint32_t number) const noexcept {
    return (words_[number / 64].load(std::memory_order_acquire) >> number % 64 & 1) != 0;
  }
  void add(std::uint32_t number) noexcept {
    words_[number / 64].fetch_or(std::uint64_t{1} << number % 64, std::memory_order_release);
  }

 private:
  std::array<std::atomic<std::uint64_t>, kMaxFunctions / 64> words_{};
};

/// Ways in which tensors go to a member: docs/guides/rpc.md.
enum class Route : std::uint8_t { inlined, copy, lease, move, pull, staged, parts, here, tls, ucx };
inline constexpr std::array<const char*, 10> kRouteNames{"inline", "copy",  "lease", "move", "pull",
                                                         "staged", "parts", "here",  "tls",  "ucx"};

/// The numbers of calls and tensors that were sent to a member or received from it. Only listings read them, so all
/// accesses are relaxed.
struct Counters {
  std::atomic<std::uint64_t> calls{0}, answers{0}, served{0};
  std::array<std::atomic<std::uint64_t>, kRouteNames.size()> routes{};

  /// Adds the counts of the session before.
  void add(const Counters& before) noexcept {
    calls += before.calls;
    answers += before.answers;
    served += before.served;
    for (std::size_t i = 0; i < routes.size(); ++i) routes[i] += before.routes[i];
  }
  void count(Route route, std::uint64_t tensors) noexcept {
    if (tensors != 0) routes[static_cast<std::size_t>(route)].fetch_add(tensors, std::memory_order_relaxed);
  }
  /// Increments a counter that only one thread writes at a time.
  static void count_alone(std::atomic<std::uint64_t>& counter) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
};

/// A session with one process of the group: its connection and lane, its numbers of functions, and its state.
///
/// The end of a session is final. When the network to another host is cut for too long, the session ends although the process
/// lives: the next call begins the next session, which is another Member with the same address. A program that has ended
/// and starts again under its name and number is the next session, too, with another address. Calls, references and
/// messages belong to one session.
///
/// Thread safety: see the comment above each part. The node outlives its members. Invariants: has_ended is set after
/// all messages in the member's lane were read. Messages of a session are read only after the session before is over.
struct Member {
  static constexpr std::chrono::milliseconds kFirstPause{20}, kLastPause{1000};

  explicit Member(Address where, Member* ended = nullptr)
      : address(std::move(where)), before(ended), session(ended ? ended->session + 1 : 1) {
    if (is_reconnected()) counters.add(ended->counters);
    if (ended) may_restart = ended->may_restart.load();
  }

  /// Returns whether the session before was one with the same process.
  bool is_reconnected() const noexcept { return before && address.is_same_process(before->address); }

  std::uint32_t number() const noexcept { return address.number; }
  const std::string& name() const noexcept { return address.name; }

  /// Counts tensors that go to the member. All tensors that go to another host take one route.
  void count(Route route, std::uint64_t tensors) noexcept {
    counters.count(shares_memory ? route : far_route, tensors);
  }

  /// Returns the last session with the process, which may be newer than the caller's list of members.
  Member& last_session() noexcept {
    Member* last = this;
    while (Member* const behind = last->next) last = behind;
    return *last;
  }
  /// Returns whether there was a connection to the process and is none: the session has ended, or it follows another one
  /// with that process and is not connected yet.
  bool is_gone() const noexcept { return has_ended || (is_reconnected() && !out); }

  const Address address;
  Member* const before;                  ///< the session before; null: this is the first one
  const std::uint32_t session;           ///< 1, 2, and so on
  std::atomic<Member*> next{nullptr};    ///< the session after this one
  std::atomic<bool> may_restart{false};  ///< another process may take the place of this one after its end
  /// The number of this session in the other process; 0 until that process has told it.
  std::atomic<std::uint32_t> their_session{0};
  Transport* transport = nullptr;  ///< null: the member is this process
  bool shares_memory = true;       ///< Transport::shares_memory()
  Route far_route = Route::tls;    ///< the route of all tensors if the transport shares no memory
  /// A flag that is set once the member sends no further message; its lane may still contain some. The transport's
  /// thread shares the flag.
  std::shared_ptr<std::atomic<bool>> exit;

  bool has_exited() const noexcept { return exit && exit->load(std::memory_order_relaxed); }
  /// Returns whether the lane must not be read now.
  bool is_held_back() const noexcept {
    const std::int64_t until = held_until_ns.load(std::memory_order_acquire);
    return until != 0 && std::chrono::steady_clock::now().time_since_epoch().count() < until;
  }

  /// Returns whether sending a call or an answer to the member may take long.
  bool may_hold_up() const noexcept {
    return !shares_memory || is_full.load(std::memory_order_relaxed) ||
           !out.load(std::memory_order_relaxed);
  }

  // Any thread may use the fields up to `counters`.
  std::atomic<Connection*> out{nullptr};  ///< null until the member has greeted back
  std::atomic<Inbound*> in{nullptr};      ///< null until this process has greeted the member
  std::atomic<bool> has_ended{false};
  std::atomic<bool> is_over{false};  ///< the member has ended, and its calls have failed
  /// The time before which no thread reads the lane, in ns of the steady clock: a worker opens the memory of the lane's
  /// first message, or its owner has not answered. 0: the lane is read.
  std::atomic<std::int64_t> held_until_ns{0};
  /// The last call found so many unread messages that the next one waits.
  std::atomic<bool> is_full{false};
  std::atomic<int> senders{0};        ///< threads that may use `out` now; see LaneGuard
  std::atomic<bool> has_left{false};  ///< the member said farewell; otherwise it died
  std::atomic<bool> has_refused{
      false};  ///< the member refused this process, whose number or name is another's
  ToldNames told;
  Counters counters;

  // The mutex `opening` guards the fields up to `state`: the thread that opens the member holds it.
  Mutex opening;
  CallRef opened;  ///< done when `out` is set, or the member has ended
  std::unique_ptr<Connection> outbound;
  std::unique_ptr<Inbound> inbound;
  std::unique_ptr<TransportState> state;

  // Only the thread that opens the memory of the lane's first message uses `pause`.
  std::chrono::milliseconds pause = kFirstPause;  ///< after the next attempt that fails

  // Only the thread that looks at the lanes uses `functions`.
  std::vector<FunctionEntry*> functions;  ///< by the numbers that the member gives them
};

/// Keeps the connection to a member while the guard exists. The guard increments `senders` before it reads has_ended,
/// and a connection is released only after has_ended is set and when `senders` is 0.
class LaneGuard {
 public:
  explicit LaneGuard(Member& to) : to_(to) { to_.senders.fetch_add(1); }
  LaneGuard& operator=(LaneGuard&&) = delete;
  ~LaneGuard() { to_.senders.fetch_sub(1); }

  /// Returns the connection; null before it is opened and after the member has ended.
  Connection* lane() const noexcept { return to_.has_ended ? nullptr : to_.out.load(); }

 private:
  Member& to_;
};

/// Returns how the session ended, for texts of errors, e.g. "left the group".
const char* why_ended(const Member& member) noexcept;
/// Throws peer_died.
[[noreturn]] void throw_ended_early(const Member& member);

}  // namespace onecopy::rpc
