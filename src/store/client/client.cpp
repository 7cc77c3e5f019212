// SPDX-License-Identifier: Apache-2.0
#include "store/client/client.h"

#include <cstdlib>
#include <string_view>
#include <thread>

#include "core/point.h"
#include "os/log.h"
#include "store/client/start_keeper.h"
#include "store/keeper/version_files.h"

namespace onecopy::store {
namespace {

constexpr std::chrono::milliseconds kNextLook{2};

bool may_start_keeper(const ConnectOptions& options) {
  const char* const set = std::getenv("ONECOPY_STORE_AUTOSTART");
  return options.autostart && (!set || std::string_view(set) != "0");
}

[[noreturn]] void throw_no_keeper() {
  throw Error(ErrorCode::peer_died,
              "the store has no keeper, and may not start one (ONECOPY_STORE_AUTOSTART=0); run `onecopy "
              "store serve`");
}

}  // namespace

Client& Client::here(std::shared_ptr<Client>& client) {
  if (client->pid_ != current_pid()) client = std::make_shared<Client>(client->place_, client->options_);
  return *client;
}

Packet Client::exchange(const std::function<Bytes()>& question, std::span<const int> fds,
                        Deadline deadline) {
  const LockGuard lock(mutex_);
  return exchange_locked(question, fds, deadline);
}

/// Asks a question, again if the keeper ends. Drops the link after a timeout, because a late answer would be taken for
/// the answer to the next question.
Packet Client::exchange_locked(const std::function<Bytes()>& question, std::span<const int> fds,
                               Deadline deadline) {
  for (;;) {
    if (!link_) connect(deadline);
    try {
      return link_->ask(question(), fds, deadline);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::peer_died || error.code() == ErrorCode::timeout) link_.reset();
      if (error.code() != ErrorCode::peer_died || deadline.has_passed()) throw;
    }
  }
}

/// Starts the keeper, unless another process is quicker.
void Client::start() {
  try {
    start_keeper(options_.command);
  } catch (const Error&) {
    link_ = try_connect();
    if (!link_) throw;
  }
}

std::optional<Link> Client::try_connect() const {
  try {
    return Link::connect(place_, Deadline::after(kKeeperPatience));
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Connects, and tells the keeper what is read here. Begins anew if the keeper ends before it has answered.
void Client::connect(Deadline deadline) {
  while (!link_) {
    reach(deadline);
    for (Reading::Held& held : readings_)
      if (link_) offer(held, deadline);
  }
}

void Client::reach(Deadline deadline) {
  for (bool has_started = false; !link_;) {
    try {
      link_ = Link::connect(place_, deadline);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_died || deadline.has_passed()) throw;
      if (!may_start_keeper(options_)) throw_no_keeper();
      if (has_started) std::this_thread::sleep_for(kNextLook);
      else start();
      has_started = true;
    }
  }
}

/// Offers a version that is read here to a new keeper. If the keeper refuses the version, the version stays mapped here
/// and gets id 0. If the keeper ends, there is no link afterwards.
void Client::offer(Reading::Held& held, Deadline deadline) {
  try {
    const Packet answer = link_->ask(pack(Offer{held.version}), numbers_of(held.files), deadline);
    held.version = unpack<Opened>(answer.bytes).version;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::peer_died || error.code() == ErrorCode::timeout) {
      link_.reset();
      if (error.code() == ErrorCode::timeout || deadline.has_passed()) throw;
      return;
    }
    log_warning("the store does not take back version {} of \"{}\": {}", held.version.number,
                held.version.name, error.what());
    held.version.id = 0;
  }
}

std::optional<Client::Reading> Client::open(const std::string& name, std::uint64_t number,
                                            const Reading* known, Deadline deadline) {
  const LockGuard lock(mutex_);
  const auto question = [&]() NO_THREAD_SAFETY_ANALYSIS {
    return pack(Open{name, number, known ? known->at_->version.id : 0});
  };
  Packet packet = exchange_locked(question, {}, deadline);
  const auto opened = unpack<Opened>(packet.bytes);
  if (packet.fds.empty()) {
    if (known) return std::nullopt;
    throw Error(ErrorCode::protocol, "the store's keeper sent a version without its descriptors");
  }
  point("store.client.opened");
  readings_.push_back({opened.version, std::move(packet.fds)});
  return Reading(shared_from_this(), std::prev(readings_.end()));
}

Welcome Client::welcome(Deadline deadline) {
  const LockGuard lock(mutex_);
  if (!link_) connect(deadline);
  return link_->welcome();
}

/// Does nothing in a forked child, whose connection does not read the versions of the parent. If the socket has no room
/// for the message, because the worker is stopped, closes the connection: the keeper forgets what a connection read, and
/// the next call connects again.
void Client::release(Reading::At at) noexcept {
  if (pid_ != current_pid()) return;
  try {
    const LockGuard lock(mutex_);
    const std::uint64_t id = at->version.id;
    readings_.erase(at);
    if (link_ && id != 0 && !link_->try_tell(pack(Release{id}))) link_.reset();
  } catch (const std::exception& error) {
    log_debug(
        [&] { return std::string("the store was not told of the end of a reading: ") + error.what(); });
  }
}

VersionRecord Client::version_of(Reading::At at) const {
  const LockGuard lock(mutex_);
  return at->version;
}

std::vector<Fd> Client::files_of(Reading::At at) const {
  const LockGuard lock(mutex_);
  std::vector<Fd> files;
  for (const Fd& file : at->files) files.push_back(file.duplicate());
  return files;
}

}  // namespace onecopy::store
