// SPDX-License-Identifier: Apache-2.0
#include "store/client/link_watch.h"

#include <chrono>
#include <thread>

#include "onecopy/core/error.h"
#include "share/session.h"

namespace onecopy::store {
namespace {

constexpr std::chrono::milliseconds kNextRejoin{250};

}  // namespace

void LinkWatch::begin(const std::shared_ptr<Client>& client) {
  if (client->is_watched.exchange(true)) return;
  auto* const watch = new LinkWatch(client);  // never destroyed, as its worker may run
  try {
    watch->listen();
  } catch (const Error&) {  // the keeper has just ended
    watch->worker_.request();
  }
}

LinkWatch::LinkWatch(std::weak_ptr<Client> client)
    : client_(std::move(client)), worker_("onecopy-store", [this] { restore(); }) {}

/// Lets the loop see the end of a new connection, on which nothing is asked.
void LinkWatch::listen() {
  const auto client = client_.lock();
  if (!client) return;
  link_.emplace(Link::connect(client->directories(), Deadline::after(kKeeperPatience)));
  EventLoop& loop = Session::current().loop();
  loop.add(link_->fd(), [this, &loop] {
    loop.remove(link_->fd());
    worker_.request();
  });
}

/// Tries until the client has a keeper again, or is gone.
void LinkWatch::restore() {
  for (;; std::this_thread::sleep_for(kNextRejoin)) {
    const auto client = client_.lock();
    if (!client) return link_.reset();
    try {
      client->rejoin();
      return listen();
    } catch (const Error&) {  // there is no keeper yet
    }
  }
}

}  // namespace onecopy::store
