// SPDX-License-Identifier: Apache-2.0
#include "rpc/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "core/point.h"
#include "core/throw_error.h"
#include "os/log.h"
#include "os/process.h"
#include "rpc/hosts/tls_transport.h"
#include "rpc/ring/ring_transport.h"
#include "share/session.h"

namespace onecopy::rpc {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr nanoseconds kUsualSpin{100'000};  // about twice the time that it takes to wake a process
constexpr int kMaxSpins = 4;

/// The patience for telling all members that this process leaves. Stopped members learn it when this process ends.
constexpr std::chrono::seconds kFarewellPatience{1};

/// The max time that stop() waits for threads which use the lanes.
constexpr std::chrono::seconds kReleasePatience{1};

SpinTimes spin_of(const NodeOptions& options) {
  if (options.spin >= nanoseconds{0}) return {options.spin, options.spin};
  const char* const text = std::getenv("ONECOPY_RPC_SPIN_US");
  if (!text && usable_cpus() < 2) return {};
  if (!text) return {kUsualSpin, kMaxSpins * kUsualSpin};
  unsigned us = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), us);
  if (error != std::errc{} || *end != '\0')
    throw_error(ErrorCode::invalid_argument,
                "ONECOPY_RPC_SPIN_US must be a number of microseconds, not \"{}\"", text);
  return {std::chrono::microseconds(us), std::chrono::microseconds(us)};
}

std::int64_t to_ns(Deadline deadline) {
  return deadline == kForever ? 0 : std::max<std::int64_t>(1, deadline.at().time_since_epoch().count());
}

}  // namespace

Node::Node(NodeOptions options)
    : options_(std::move(options)),
      session_(Session::current()),
      bell_(std::make_shared<DoorbellMemory>()),
      waiter_(**bell_,
              {[this](int looks, const Call* mine) {
                 return watch_lanes(looks, [&] { return mine->is_done(); });
               },
               [this](const Call* mine) { poll(mine); }},
              [this](CallRef call) {
                Work work;
                work.kind = Work::Kind::settle;
                work.done = std::move(call);
                give_out(std::move(work));
              }),
      spin_(spin_of(options_)),
      work_spin_(spin_.usual) {
  waiter_.set_spin(spin_.most);
  lists_.push_back(std::make_unique<const MemberList>());
  list_ = lists_.back().get();
  make_transports();
  report_ = session_.groups().add([this] { return describe(); });
}

/// Makes the transports under the lock: a transport's thread that enters a member waits until all transports are there.
void Node::make_transports() {
  const LockGuard lock(members_mutex_);
  TransportHost& host = *this;
  auto ring = std::make_unique<RingTransport>(host, session_);
  ring_ = ring.get();
  transports_.push_back(std::make_unique<TlsTransport>(host, options_.transport));
  transports_.push_back(std::move(ring));
}

/// Leaves the listings alone in a forked child, whose session is another one and lists nothing of the parent's node.
Node::~Node() {
  // The transports stop first, because their threads enter members.
  for (const auto& transport : transports_) transport->stop();
  if (Session::existing() == &session_) session_.groups().remove(report_);
  for (const auto& member : members_)
    if (member->transport) member->transport->close(*member);
}

void Node::check_can_send(const Member& to) const {
  if (Session::existing() != &session_)
    throw Error(ErrorCode::unsupported,
                "rpc does not survive fork(): this process was forked from a member of the group, and has "
                "to join as one of its own");
  if (is_stopped()) throw Error(ErrorCode::closed, "this process has left the group");
  if (to.has_ended) throw_error(ErrorCode::peer_died, "{} has {}", to.name(), why_ended(to));
}

/// Returns the connection. Throws peer_died if the member has just ended.
Connection& Node::lane_of(const LaneGuard& guard, const Member& to) const {
  Connection* const out = guard.lane();
  if (!out) check_can_send(to);
  return *out;
}

/// Sends a call. The function's name is included until the first call with it was sent, because messages of one lane
/// arrive in order.
void Node::put(Member& to, Connection& out, CallRequest& call, CallTail tail, Deadline deadline) {
  const bool is_told = to.told.has(tail.function);
  append_context(call.message, call.context);
  if (!is_told) {
    append_name(call.message.data, call.function.name());
    tail.name_bytes = static_cast<std::uint16_t>(call.function.name().size());
  }
  append_tail(call.message.data, tail);
  call.message.tag = tag_of(Form::call, call.message.tag, call.is_in_order);
  out.send(call.message, call.stream, deadline);
  point("rpc.call.committed");
  // Between hosts, small messages overtake large ones, so each includes the name.
  if (!is_told && to.shares_memory) to.told.add(tail.function);
  if (out.is_full()) [[unlikely]]
    to.is_full = true;
  out.ring_for_call();
}

/// Waits for room in a lane, and reads messages while waiting. Only calls wait: two members that flood each other with
/// calls and answers would otherwise wait for each other.
void Node::wait_for_room(Member& to, Deadline deadline) {
  constexpr std::chrono::milliseconds kPause{1};
  const auto is_full = [&] {
    const LaneGuard guard(to);
    Connection* const out = guard.lane();
    return out && out->is_full();
  };
  while (to.is_full.load(std::memory_order_relaxed)) {
    check_can_send(to);
    if (!is_full()) {
      to.is_full = false;
      return;
    }
    if (deadline.has_passed())
      throw_error(ErrorCode::timeout, "{} has read none of the calls that wait for it in time", to.name());
    look_once();
    std::this_thread::sleep_for(kPause);
  }
}

CallRef Node::call(Member& to, CallRequest&& outgoing, Deadline deadline) {
  check_can_send(to);
  if (!to.out.load(std::memory_order_acquire)) connect(to, deadline);
  wait_for_room(to, deadline);
  FunctionEntry& function = outgoing.function;
  const std::uint32_t function_number = functions_.number_of(function);
  auto call = std::make_shared<Call>(to.number(), deadline, to.session);
  call->owner = outgoing.owner;
  call->drop_owner = outgoing.drop_owner;
  call->arguments = outgoing.arguments;
  call->stays_here = outgoing.arguments != nullptr;
  call->mean_ns = &function.mean_ns;
  call->spin_ns = spin_.for_call(nanoseconds(function.mean_ns.load(std::memory_order_relaxed))).count();
  const std::uint64_t number = calls_.add(call);
  try {
    const LaneGuard guard(to);
    Connection& out = lane_of(guard, to);
    put(to, out, outgoing, {number, to_ns(deadline), function_number, 0, 0}, deadline);
    if (out.worker_shares_cpu()) call->spin_ns = 0;
    to.counters.calls.fetch_add(1, std::memory_order_relaxed);
  } catch (...) {
    calls_.take(number);
    call->owner = nullptr;  // the caller keeps its objects
    call->arguments = nullptr;
    throw;
  }
  // The thread that failed the calls of an ended member may not have seen this one.
  if (to.has_ended || is_stopped())
    if (const CallRef left = calls_.take(number))
      complete(left, is_stopped() ? End::stopped : End::member_ended);
  return call;
}

void Node::note(Member& to, Message&& message, Stream stream) {
  check_can_send(to);
  if (!to.out.load(std::memory_order_acquire)) connect(to, kForever);
  const LaneGuard guard(to);
  Connection& out = lane_of(guard, to);
  append_tail(message.data, NoteTail{});
  message.tag = tag_of(Form::note, message.tag, true);
  out.send(message, stream, kForever);
  out.ring_for_call();
}

/// Returns whether an answer can be sent. Connects if needed: a member may call before a worker has read its greeting.
bool Node::can_answer(Member& to, Deadline deadline) {
  if (to.has_ended || to.out.load(std::memory_order_acquire)) return !to.has_ended;
  try {
    connect(to, deadline);
    return true;
  } catch (const Error& error) {
    log_debug(fmt::format("{} could not be answered: {}", to.name(), error.what()));
    return false;
  }
}

void Node::answer(Member& to, std::uint64_t call, Status status, Message&& message, bool is_in_order,
                  Stream stream, Deadline deadline, const CallContext& context) {
  if (call == 0 || !can_answer(to, deadline)) return;
  const LaneGuard guard(to);
  Connection* const out = guard.lane();
  if (!out) return;
  append_context(message, context);
  append_tail(message.data, AnswerTail{call, status, 0});
  message.tag = tag_of(Form::answer, message.tag, is_in_order);
  try {
    out->send(message, stream, deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout || !deadline.has_passed()) throw;
    return log_debug(fmt::format("an answer to {} was too late: {}", to.name(), error.what()));
  }
  point("rpc.answer.committed");
  if (is_in_order) out->ring_for_call();
  else out->ring_for_answer();
  shares_processor_.store(out->waiter_shares_cpu(), std::memory_order_relaxed);
}

CallRef Node::begin_here(Deadline deadline, void* owner, void (*drop_owner)(void*) noexcept) {
  auto call = std::make_shared<Call>(number(), deadline);
  call->spin_ns = spin_.usual.count();
  call->owner = owner;
  call->drop_owner = drop_owner;
  calls_.add(call);
  waiter_.want(*call);
  return call;
}

bool Node::has_ended(const CallRef& call) {
  if (!call->is_done()) look_once();
  return call->is_done();
}

bool Node::end_call(const CallRef& call, End end) {
  calls_.take(call->number);
  return complete(call, end);
}

bool Node::wait(const CallRef& call, Deadline until) {
  if (!waiter_.wait(call, std::min(until, call->deadline()))) expire();
  if (!call->is_done() && until == kForever) serve_if_all_are_busy();
  if (!call->is_done()) return false;
  note_time(*call);
  return true;
}

/// Updates the mean time of the last few calls of the function. Reads no clock for answers that came at once.
void Node::note_time(Call& call) const noexcept {
  constexpr std::int64_t kMax = 1'000'000'000;
  if (!call.mean_ns.load(std::memory_order_relaxed)) return;
  std::atomic<std::uint32_t>* const mean = call.mean_ns.exchange(nullptr);
  if (!mean) return;
  const std::int64_t before = mean->load(std::memory_order_relaxed);
  std::int64_t took = 0;
  if (const std::int64_t since = call.waited_since_ns.load(std::memory_order_relaxed); since != 0)
    took = steady_clock::now().time_since_epoch().count() - since;
  else if (before == 0) return;
  const std::int64_t next = before + (std::clamp<std::int64_t>(took, 0, kMax) - before) / 4;
  mean->store(static_cast<std::uint32_t>(next), std::memory_order_relaxed);
}

bool Node::complete(const CallRef& call, End end, Status status, Message&& answer) {
  return waiter_.complete(call, end, status, std::move(answer));
}

void Node::stop() {
  if (is_stopped_.exchange(true)) return;
  point("rpc.stop.begun");
  const Deadline deadline = Deadline::after(kFarewellPatience);
  if (Session::existing() == &session_)
    ring_->close_door(deadline);  // a forked child leaves the door to its parent
  MemberList members = *list_.load();
  for (Member* member : members) say_farewell(*member, deadline);
  for (const auto& transport : transports_) {
    transport->flush();
    transport->stop();  // a process that has left takes no connections
  }
  fail(calls_.take_all(), End::stopped);
  for (Member* member : members)
    if (member->opened) complete(member->opened, End::stopped);
  (*bell_)->calls.ring_all();
  (*bell_)->answers.ring_all();
  if (Session::existing() == &session_) release_all(Deadline::after(kReleasePatience));
}

}  // namespace onecopy::rpc
