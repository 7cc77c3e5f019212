// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <pthread.h>

#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/event_loop.h"
#include "os/log.h"
#include "rpc/far/far.h"

/// The work of the far thread.
namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kWakeToken = 0, kClientToken = 1, kFirstLinkToken = 2;
constexpr std::chrono::milliseconds kBeat{1000};
constexpr std::chrono::seconds kHelloPatience{10};

}  // namespace

void Far::run() noexcept {
  pthread_setname_np(pthread_self(), "onecopy-far");
  try {
    poller_ = std::make_unique<Poller>();
    poller_->add(wake_->fd(), kWakeToken);
    last_token_ = kFirstLinkToken;
    if (listener_) {
      loop_.remove(listener_.fd());
      clients_ = std::make_unique<FarClients>(listener_, options_.key, *poller_, kClientToken);
      poller_->add(listener_.fd(), kClientToken);
    }
    while (!is_over_) turn();
  } catch (const std::exception& error) {
    log_error(fmt::format("members on other hosts are not reached any more: {}", error.what()));
  }
  end_all();
}

/// Also the links that it has not taken: threads may wait for room in them.
void Far::end_all() noexcept {
  std::vector<Link> links;
  {
    const LockGuard lock(mutex_);
    has_ended_ = true;
    links.swap(new_links_);
  }
  for (const Link& at : links) {
    at.link->end();
    if (at.delivery.ended) at.delivery.ended();
  }
  while (!links_.empty()) end(links_.begin()->first, "this process leaves");
}

void Far::turn() {
  const auto left = next_beat_.whole_ms_left(kBeat);
  for (const std::uint64_t token : poller_->wait(left)) handle(token);
  const TimePoint now = std::chrono::steady_clock::now();
  const bool is_due = now >= next_beat_;
  if (is_due) next_beat_ = now + kBeat;
  if (is_due && clients_) serve_clients();  // which may be late
  send_all(is_due);
}

void Far::handle(std::uint64_t token) {
  if (token == kClientToken) return serve_clients();
  if (token != kWakeToken) return look_at(token);
  wake_->clear();
  take_new_links();
}

void Far::take_new_links() {
  std::vector<Link> links;
  {
    const LockGuard lock(mutex_);
    links.swap(new_links_);
    std::erase_if(all_links_, [](const auto& known) { return known.expired(); });
  }
  for (Link& link : links) add(std::move(link));
}

void Far::serve_clients() {
  for (auto& [socket, keys, unshared] : clients_->serve()) {
    auto link = std::make_shared<FarLink>(std::move(socket), keys, FarLink::Side::listener, wake_);
    {
      const LockGuard lock(mutex_);
      all_links_.push_back(link);
    }
    add({std::move(link), {}, Deadline::after(kHelloPatience)});
  }
}

void Far::add(Link&& link) {
  const std::uint64_t token = ++last_token_;
  poller_->add(link.link->fd(), token);
  links_.emplace(token, std::move(link));
}

void Far::look_at(std::uint64_t token) {
  const auto at = links_.find(token);
  if (at == links_.end()) return;
  try {
    receive(at->second);
  } catch (const std::exception& error) {
    end(token, error.what());
  }
}

void Far::receive(Link& at) {
  if (at.link->is_closed()) return;
  FrameReceiver::Handlers handlers;
  handlers.hello = [&](ByteSpan hello) { take_hello(at, hello); };
  handlers.message = [&](Message&& message) { at.delivery.message(std::move(message)); };
  at.link->receive(handlers);
}

void Far::take_hello(Link& at, ByteSpan hello) {
  const Address from = decode_hello(hello, own_());
  at.deadline = kForever;
  at.delivery = opened_(from, at.link);
}

void Far::send_all(bool is_due) {
  for (auto at = links_.begin(); at != links_.end();) {
    const std::uint64_t token = at->first;
    Link& link = (at++)->second;
    try {
      if (!send(token, link, is_due)) end(token, "it was closed");
    } catch (const std::exception& error) {
      end(token, error.what());
    }
  }
}

/// False when the link is over.
bool Far::send(std::uint64_t token, Link& at, bool is_due) {
  if (at.deadline.has_passed()) return false;
  const bool wants_room = at.link->send(is_due);
  if (at.link->is_closed()) return false;
  if (wants_room != at.wants_room) poller_->rearm(at.link->fd(), token, false, wants_room);
  at.wants_room = wants_room;
  return true;
}

void Far::end(std::uint64_t token, const char* why) noexcept {
  const auto at = links_.find(token);
  if (at == links_.end()) return;
  Link over = std::move(at->second);
  links_.erase(at);
  log_debug(fmt::format("a connection to a member on another host has ended: {}", why));
  poller_->remove(over.link->fd());
  over.link->end();
  if (over.delivery.ended) over.delivery.ended();
}

}  // namespace onecopy::rpc
