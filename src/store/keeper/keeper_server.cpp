// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/keeper_server.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/log.h"

namespace onecopy::store {
namespace {

constexpr std::uint64_t kListener = 0, kGuard = 1, kSignals = 2, kBell = 3, kFirstConnection = 4;
constexpr std::chrono::minutes kLost{10};
constexpr auto kNever = std::chrono::steady_clock::time_point::max();
constexpr std::chrono::milliseconds kRetry{100};
constexpr std::chrono::seconds kProof{10};  ///< the max time until a client has proved the secret
constexpr std::size_t kMaxStrangers = 256;

}  // namespace

KeeperServer::KeeperServer(KeeperState& state, Partner& guard)
    : state_(state),
      guard_(guard),
      rules_(*this, state.limits, state.begin, state.knows_all),
      last_token_(kFirstConnection) {
  ::prctl(PR_SET_NAME, "onecopy-store");
  recover();
  poller_.add(state_.listener.fd(), kListener);
  poller_.add(state_.signals.get(), kSignals);
  if (state_.directories.bell() >= 0) poller_.add(state_.directories.bell(), kBell);
  watch_guard();
}

void KeeperServer::watch_guard() { poller_.add(guard_.pidfd(), kGuard); }

Next KeeperServer::run() {
  is_replaced_ = !state_.predecessor.await_end();
  if (!is_replaced_) rewrite_index();
  log_info("the store's keeper listens in {}, and knows {} versions", state_.directories.home().path(),
           rules_.catalog().size());
  poll_directories();
  while (!is_stopping_ && !is_replaced_) {
    const auto tokens = poller_.wait(patience());
    if (!tokens.empty() || end() == kNever) last_use_ = Clock::now();
    if (Clock::now() >= end()) break;
    if (tokens.empty() && listener_paused_) listen_again();
    for (const std::uint64_t token : tokens) {
      if (token == kListener) accept_some();
      else if (token == kSignals) is_stopping_ = true;
      else if (token == kBell) directory_watch_.ring();
      else if (token == kGuard) {
        if (replace_guard() == Next::be_guard) return Next::be_guard;
      } else serve(token);
      if (is_replaced_) break;  // the waiting clients belong to the other keeper now
    }
    if (is_replaced_) break;
    poll_directories();
    tidy_up();
  }
  log_info("the store's keeper {}", is_replaced_ ? "is replaced by another one" : "ends");
  guard_.send(Partner::Kind::end);
  return is_replaced_ ? Next::leave : Next::end;
}

/// Returns when the keeper ends if nothing happens until then: nobody uses it, or no process can find it.
KeeperServer::Clock::time_point KeeperServer::end() const noexcept {
  if (!connections_.empty()) return kNever;
  if (directory_watch_.is_lost()) return last_use_ + kLost;
  return rules_.is_unused() && state_.limits.unused ? last_use_ + *state_.limits.unused : kNever;
}

/// Does what is due by now, or at the end.
void KeeperServer::tidy_up() {
  close_strangers();
  try {
    if (is_stopping_) rules_.drop_unread();
    else rules_.reclaim_due();
  } catch (const Error& error) {
    log_warning("the store drops nothing now: {}", error.what());
  }
  answer_waiting();
}

/// Returns the time after which the worker looks again if no event comes.
std::chrono::milliseconds KeeperServer::patience() const {
  if (listener_paused_) return kRetry;
  auto next = std::min({end(), rules_.next_reclaim(), directory_watch_.next()});
  for (const auto& [token, c] : connections_) {
    if (c.open) next = std::min(next, rules_.grace_end());
    if (!c.is_client) next = std::min(next, c.since + kProof);
  }
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()), kRetry);
}

/// Forks a new guard, which inherits the state. Tries again soon if no process can be made.
Next KeeperServer::replace_guard() {
  poller_.remove(guard_.pidfd());
  guard_.reap();
  point("store.worker.restarts");
  log_info("the guard of the store has ended; another one starts");
  for (;;) {
    try {
      guard_ = Partner::fork();
      break;
    } catch (const Error& error) {
      log_error("the store has no guard now: {}", error.what());
      ::usleep(std::chrono::microseconds(kRetry).count());
    }
  }
  if (guard_.is_child()) return Next::be_guard;
  watch_guard();
  return Next::be_worker;
}

/// Looks after the directories, and listens anew if the socket's file was removed.
void KeeperServer::poll_directories() {
  if (is_replaced_) return;
  std::optional<UnixSocket> listener;
  try {
    const auto state = directory_watch_.poll(Clock::now(), state_.directories, listener, state_.secret);
    if (state == KeeperDirectories::State::made_again) {
      state_.index_path = state_.directories.index();
      must_rewrite_ = true;
      rewrite_index();
    }
  } catch (const Error& error) {
    log_warning("the store's keeper cannot make its directory again: {}", error.what());
  }
  if (!listener) return;
  if (!listener_paused_) poller_.remove(state_.listener.fd());
  state_.listener = std::move(*listener);
  if (!listener_paused_) poller_.add(state_.listener.fd(), kListener);
  std::vector<int> held = state_.directories.descriptors();
  held.push_back(state_.listener.fd());
  guard_.send(Partner::Kind::directories, 0, held);
}

void KeeperServer::accept_some() {
  try {
    while (auto socket = state_.listener.try_accept()) {
      if (!socket->peer().is_our_user) continue;
      const std::uint64_t token = ++last_token_;
      Connection& c = connections_.try_emplace(token, std::move(*socket)).first->second;
      poller_.add(c.socket.fd(), token);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::out_of_descriptors) throw;
    log_info("the store accepts no more clients now: {}", error.what());
    listener_paused_ = true;
    poller_.remove(state_.listener.fd());
  }
}

/// Closes the connections that have not proved the secret in time, and the oldest ones of too many.
void KeeperServer::close_strangers() {
  std::vector<std::uint64_t> strangers;
  for (const auto& [token, c] : connections_)
    if (!c.is_client) strangers.push_back(token);
  for (std::size_t i = 0; i < strangers.size(); ++i) {
    const Connection& c = connections_.at(strangers[i]);
    if (strangers.size() - i <= kMaxStrangers && Clock::now() < c.since + kProof) continue;
    log_info("the store ends the connection of pid {}, which does not prove that it knows the secret",
             c.pid);
    close(strangers[i]);
  }
}

void KeeperServer::serve(std::uint64_t token) {
  const auto at = connections_.find(token);
  if (at == connections_.end()) return;
  Connection& c = at->second;
  try {
    while (auto packet = c.socket.try_receive_cut())
      if (auto message = c.joiner.add(std::move(*packet))) answer(token, c, std::move(*message));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_died)
      log_info("the store ends a connection of pid {}: {}", c.pid, error.what());
    close(token);
  }
}

void KeeperServer::close(std::uint64_t token) {
  const auto at = connections_.find(token);
  poller_.remove(at->second.socket.fd());
  connections_.erase(at);
  rules_.release_all(token);
  if (listener_paused_) listen_again();
}

void KeeperServer::listen_again() {
  listener_paused_ = false;
  poller_.add(state_.listener.fd(), kListener);
}

/// Sends a message. Closes the connection of a client that does not read its answers.
void KeeperServer::send(Connection& c, const Bytes& message, std::span<const int> fds) {
  send_in_packets(message, fds, [&c](ByteSpan bytes, std::span<const int> some) {
    if (!c.socket.try_send(bytes, some))
      throw Error(ErrorCode::protocol, "the client does not read the answers");
  });
}

}  // namespace onecopy::store
