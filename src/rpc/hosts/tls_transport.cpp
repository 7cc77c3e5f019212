// SPDX-License-Identifier: Apache-2.0
#include "rpc/hosts/tls_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "core/point.h"
#include "core/throw_error.h"
#include "os/log.h"
#include "os/process.h"
#include "rpc/hosts/endpoint.h"
#include "rpc/hosts/host_connection.h"
#include "rpc/message.h"
#include "rpc/ring/lane.h"

namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kBeat{1000}, kRetry{100};
/// The max time for a peer to say which member it is.
constexpr std::chrono::milliseconds kHelloPatience{5'000};

}  // namespace

TlsTransport::TlsTransport(TransportHost& host, const std::string& transport)
    : host_(host), options_(TlsOptions::of_environment(transport)), pid_(current_pid()) {
  beats_.emplace(*loop_, [this] { return beat(); });
  if (!options_.fabric.empty()) {
    transport::require_fabric(options_.fabric);
    log_warning(fmt::format("rpc between hosts goes over {}: calls and tensors are not encrypted", name()));
  }
  if (!options_.listen.empty()) listen();
}

void TlsTransport::listen() {
  if (options_.key.empty())
    log_warning(
        "rpc has no key, and listens on 127.0.0.1 alone, where any user of this host may call: set "
        "ONECOPY_RPC_KEY to one secret of the group in all members (`onecopy key` prints a new one)");
  const auto proved = [this](std::unique_ptr<TlsStream> stream) {
    auto peer = std::make_shared<TlsPeer>();
    peer->link = make_link(std::move(stream), Side::listener);
    peer->ready = Deadline::after(kHelloPatience);
    add(peer);
    poll(peer);
  };
  listener_.emplace(*loop_, TlsListener::listen(HostPort::parse(options_.listen)),
                    TlsListener::Options{context(), [this] { beats_->request(); }, proved});
  endpoint_ = Endpoint{listener_->endpoint(), std::string(name()), check_of_key(options_.key)}.str();
}

/// Adds a connection to a member. Messages from all its connections arrive in the member's lane, and the first
/// connection is used for sending. A connection over a fabric is open only after the other side has answered over it.
void TlsTransport::take_link(Member& member, const TlsPeerRef& peer) {
  std::shared_ptr<RingConnection> lane;
  {
    const LockGuard lock(member.opening);
    if (member.has_ended || !member.state) throw_error(ErrorCode::peer_died, "{} has ended", member.name());
    if (!member.inbound) member.inbound = std::make_unique<Inbound>();
    lane = std::make_shared<RingConnection>(member.inbound->sender_to_itself(), host_.bell());
    state_of(member).links.push_back(peer->link);
    state_of(member).is_connecting = true;
  }
  peer->member = &member;
  peer->ended = host_.end_of(member);
  peer->deliver = [lane](Message&& message) {
    arrive(message);
    const bool is_answer = (message.tag & kFormBits) == static_cast<std::uint32_t>(Form::answer);
    lane->send(message, {}, kForever);
    message.tensors.clear();  // so that the reader frees a large tensor, not the loop's thread
    if (is_answer && (message.tag & kInOrder) == 0) lane->ring_for_answer();
    else lane->ring_for_call();
  };
  if (options_.fabric.empty())
    return open_for(member, std::make_unique<HostConnection<TlsLink>>(peer->link));
  peer->ready = Deadline::after(patience());
  begin_fabric(peer, 1);
}

void TlsTransport::open_for(Member& member, std::unique_ptr<Connection> outbound) {
  {
    const LockGuard lock(member.opening);
    if (member.has_ended || !member.inbound) return;
    if (!member.outbound) member.outbound = std::move(outbound);
    member.in = member.inbound.get();
    member.out = member.outbound.get();
  }
  point("rpc.lane.opened");
  host_.note_opened(member);
}

/// Hands the connection to the loop, which sends and receives.
void TlsTransport::add(const TlsPeerRef& peer) {
  {
    const LockGuard lock(mutex_);
    if (is_over_) throw Error(ErrorCode::closed, "this process has left the group");
    peers_.push_back(peer);
  }
  loop_->add(
      peer->link->fd(), [this, peer] { poll(peer); }, true, true);
  if (is_over_) loop_->remove(peer->link->fd());  // stop() has ended the link
  beats_->request();
}

void TlsTransport::poll(const TlsPeerRef& peer) noexcept {
  try {
    deliver(peer, peer->link->on_ready());
  } catch (const std::exception& error) {
    end(peer, error.what());
  }
}

void TlsTransport::deliver(const TlsPeerRef& peer, Inbox::Arrived&& arrived) {
  if (arrived.hello) {
    Member& from = session_of(decode_hello(*arrived.hello, host_.address()));
    peer->ready = kForever;
    take_link(from, peer);
  }
  if (arrived.fabric) take_fabric(peer, *arrived.fabric);
  for (Message& message : arrived.messages) peer->deliver(std::move(message));
  if (arrived.end) std::rethrow_exception(arrived.end);
}

/// Returns the session that a connection belongs to. Both processes may connect in one session. A larger number than
/// before means that the sender has noticed a cut first and has ended the session that this process still uses. A
/// smaller number comes from a connection that the sender has given up.
Member& TlsTransport::session_of(const Hello& hello) {
  Member& known = host_.enter(hello.from);
  if (known.transport != this)
    throw Error(ErrorCode::protocol, "another process says that it is one of this host");
  const std::uint32_t before = known.is_reconnected() ? known.before->their_session.load() : 0;
  const std::uint32_t last = known.their_session;
  const bool is_over = known.has_ended || known.has_exited();
  if (known.has_left || hello.session <= before || hello.session < last ||
      (is_over && hello.session == last))
    transport::refuse_frame("is of a session that has ended");
  const bool is_next = is_over || (last != 0 && hello.session != last);
  if (is_next) end_session(known);
  Member& session = is_next ? host_.next_session(known) : known;
  session.their_session = hello.session;
  return session;
}

void TlsTransport::end_session(const Member& member) noexcept {
  for (const TlsPeerRef& peer : peers())
    if (peer->member == &member) end(peer, "the other side has begun a new session");
}

void TlsTransport::end(const TlsPeerRef& peer, const char* why) noexcept {
  {
    const LockGuard lock(mutex_);
    if (std::erase(peers_, peer) == 0) return;
  }
  log_debug(fmt::format("a connection to a member on another host has ended: {}", why));
  loop_->remove(peer->link->fd());
  peer->link->end();
  if (peer->channel) {
    peer->channel->take_rest();
    peer->channel->close();
    const LockGuard lock(mutex_);
    std::erase(channels_, peer->channel);
  }
  if (peer->ended) peer->ended();
}

std::vector<TlsTransport::TlsPeerRef> TlsTransport::peers() const {
  const LockGuard lock(mutex_);
  return peers_;
}

/// Sends heartbeats, ends connections that are cut, and tries again to reach members over a fabric. Runs on the loop's thread,
/// each second while there are connections, and more often while a member is not reached. The last acknowledgement came
/// up to a heartbeat before the cut.
Timer::Pause TlsTransport::beat() {
  const auto all = peers();
  bool polls_fast = false;
  for (const TlsPeerRef& peer : all) {
    if (peer->ready.has_passed())
      end(peer, peer->member ? "it was not reached over the fabric" : "it has not said which member it is");
    else if (peer->link->unanswered() >= options_.peer_timeout + kBeat) end(peer, "it was cut");
    else peer->link->beat();
    if (peer->retry.has_passed()) begin_fabric(peer, peer->attempt + 1);
    polls_fast = polls_fast || peer->retry != kForever || peer->link->unanswered() > kBeat;
  }
  wake_fabrics();
  drop_old_fabrics();
  if (listener_) listener_->poll();
  if (all.empty() && !(listener_ && listener_->has_more_to_do())) return {};
  return polls_fast ? kRetry : kBeat;
}

void TlsTransport::close(Member& member) noexcept {
  const LockGuard lock(member.opening);
  if (!member.state) return;
  for (const TlsLinkRef& link : state_of(member).links) link->close();
}

std::chrono::seconds TlsTransport::silence_of(Member& member) const {
  constexpr std::chrono::seconds kSilent{3};  // a member on another host says something each second
  const LockGuard lock(member.opening);
  std::chrono::seconds shortest{0};
  if (!member.state) return shortest;
  for (const TlsLinkRef& link : state_of(member).links)
    if (shortest == std::chrono::seconds{0} || link->silence() < shortest) shortest = link->silence();
  return shortest < kSilent ? std::chrono::seconds{0} : shortest;
}

void TlsTransport::flush() noexcept {
  const Deadline end = Deadline::after(1s);
  std::vector<std::shared_ptr<FabricChannel>> channels;
  {
    const LockGuard lock(mutex_);
    channels = channels_;
  }
  for (const auto& channel : channels) channel->ask();
  const auto have_arrived = [&] {
    return std::ranges::all_of(channels, [](const auto& channel) { return channel->has_arrived(); }) &&
           std::ranges::all_of(peers(), [](const TlsPeerRef& peer) {
             return peer->link->is_closed() || peer->link->has_arrived();
           });
  };
  while (!have_arrived() && !end.has_passed()) std::this_thread::sleep_for(1ms);
}

/// Abandons the connections in a forked child. The connections are the parent's, and the loop has no thread and perhaps
/// a lock that stays locked.
void TlsTransport::abandon() noexcept NO_THREAD_SAFETY_ANALYSIS {
  if (loop_) loop_->abandon();
  static_cast<void>(loop_.release());
  // A fabric does not survive a fork.
  static_cast<void>(new (std::nothrow) std::shared_ptr<Fabric>(std::move(fabric_)));
  static_cast<void>(new (std::nothrow) std::vector<std::shared_ptr<Fabric>>(std::move(old_fabrics_)));
}

void TlsTransport::stop() noexcept {
  if (current_pid() != pid_) return abandon();
  if (is_over_.exchange(true)) return;
  loop_->stop();
  listener_.reset();
  for (const TlsPeerRef& peer : peers()) end(peer, "this process leaves");
  const LockGuard lock(mutex_);
  if (fabric_) fabric_->stop();
  for (const auto& old : old_fabrics_) old->stop();
}

}  // namespace onecopy::rpc
