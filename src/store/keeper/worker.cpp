// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/worker.h"

#include <sys/prctl.h>
#include <unistd.h>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/log.h"

namespace onecopy::store {
namespace {

constexpr std::uint64_t kListener = 0, kGuard = 1, kSignals = 2, kFirstConnection = 3;
constexpr std::chrono::seconds kReconnection{2};
constexpr std::chrono::minutes kUnused{10};
constexpr std::chrono::milliseconds kRetry{100};

}  // namespace

Worker::Worker(Holdings& holdings, Partner& guard)
    : holdings_(holdings),
      guard_(guard),
      last_token_(kFirstConnection),
      reclaims_from_(Clock::now() + kReconnection) {
  ::prctl(PR_SET_NAME, "onecopy-store");
  recover();
  poller_.add(holdings_.listener.fd(), kListener);
  poller_.add(holdings_.signals.get(), kSignals);
  watch_guard();
}

/// Makes the catalog from the index. Drops versions without a record, which were being published when the last worker
/// ended: their publishers ask again.
void Worker::recover() {
  holdings_.index.catch_up();
  holdings_.index.for_each([this](const Record& record) { catalog_.apply(record); });
  std::vector<std::uint64_t> unknown;
  for (const auto& [id, fds] : holdings_.versions)
    if (!catalog_.find(id)) unknown.push_back(id);
  for (const std::uint64_t id : unknown) {
    holdings_.versions.erase(id);
    guard_.tell(Partner::Kind::drop, id);
  }
  for (const auto& [name, object] : catalog_.objects()) unreclaimed_.insert(name);
  first_own_id_ = catalog_.next_id();
}

void Worker::watch_guard() { poller_.add(guard_.pidfd(), kGuard); }

Next Worker::run() {
  is_replaced_ = !holdings_.predecessor.await_end();
  while (!is_stopping_ && !is_replaced_) {
    const auto tokens = poller_.wait(patience());
    if (!tokens.empty() || !is_unused()) last_use_ = Clock::now();
    if (Clock::now() - last_use_ >= kUnused) break;
    if (tokens.empty() && is_starved_) listen_again();
    for (const std::uint64_t token : tokens) {
      if (token == kListener) accept_some();
      else if (token == kSignals) is_stopping_ = true;
      else if (token == kGuard) {
        if (replace_guard() == Next::be_guard) return Next::be_guard;
      } else serve(token);
      if (is_replaced_) break;  // the waiting clients belong to the other keeper now
    }
    if (is_replaced_) break;
    reclaim_all();
    reclaim_old();
  }
  guard_.tell(Partner::Kind::end);
  return is_replaced_ ? Next::leave : Next::end;
}

/// Returns the time after which the worker looks again if no event comes; infinite if there is nothing to reclaim.
std::chrono::milliseconds Worker::patience() const {
  if (is_starved_) return kRetry;
  auto next = is_unused() ? last_use_ + kUnused : next_old();
  if (!unreclaimed_.empty()) next = std::min(next, reclaims_from_);
  if (next == Clock::time_point::max()) return std::chrono::milliseconds(-1);
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()), kRetry);
}

/// Forks a new guard, which inherits the holdings. Tries again soon if no process can be made.
Next Worker::replace_guard() {
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

void Worker::accept_some() {
  try {
    while (auto socket = holdings_.listener.try_accept()) {
      if (!socket->peer().is_our_user) continue;
      const std::uint64_t token = ++last_token_;
      Connection& c = connections_.try_emplace(token, std::move(*socket)).first->second;
      poller_.add(c.socket.fd(), token);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::out_of_descriptors) throw;
    log_info("the store accepts no more clients now: {}", error.what());
    is_starved_ = true;
    poller_.remove(holdings_.listener.fd());
  }
}

void Worker::serve(std::uint64_t token) {
  const auto at = connections_.find(token);
  if (at == connections_.end()) return;
  Connection& c = at->second;
  try {
    while (auto packet = c.socket.try_receive())
      if (auto message = c.joiner.add(std::move(*packet))) answer(c, std::move(*message));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_died)
      log_info("the store ends a connection of pid {}: {}", c.pid, error.what());
    close(token);
  }
}

void Worker::close(std::uint64_t token) {
  const auto at = connections_.find(token);
  poller_.remove(at->second.socket.fd());
  auto node = connections_.extract(at);
  while (!node.mapped().reads.empty()) end_reading(node.mapped(), node.mapped().reads.begin()->first);
  if (is_starved_) listen_again();
}

void Worker::listen_again() {
  is_starved_ = false;
  poller_.add(holdings_.listener.fd(), kListener);
}

/// Sends a message. Closes the connection of a client that does not read its answers.
void Worker::send(Connection& c, const Bytes& message, std::span<const int> fds) {
  send_in_packets(message, fds, [&c](ByteSpan bytes, std::span<const int> some) {
    if (!c.socket.try_send(bytes, some))
      throw Error(ErrorCode::protocol, "the client does not read the answers");
  });
}

}  // namespace onecopy::store
