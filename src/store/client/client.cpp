// SPDX-License-Identifier: Apache-2.0
#include "store/client/client.h"

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>

#include "core/point.h"
#include "core/throw_error.h"
#include "os/log.h"
#include "store/client/link_watch.h"
#include "store/client/start_keeper.h"

namespace onecopy::store {
namespace {

constexpr std::chrono::milliseconds kNextTry{2};

bool may_start_keeper(const ConnectOptions& options) {
  const char* const set = std::getenv("ONECOPY_STORE_AUTOSTART");
  return options.autostart && (!set || std::string_view(set) != "0");
}

/// Adds to a list whose other entries may be gone. Removes those when the list has grown to twice of what is there.
template <class T>
void remember(std::vector<std::weak_ptr<T>>& list, const std::shared_ptr<T>& entry) {
  if (list.size() == list.capacity())
    std::erase_if(list, [](const auto& other) { return other.expired(); });
  list.push_back(entry);
}

/// Throws the error that is being handled. A timeout names the time since `begin`, because the last of several waits may
/// have been short.
[[noreturn]] void rethrow(const Error& error, TimePoint begin) {
  if (error.code() != ErrorCode::timeout) throw;
  const auto waited = std::chrono::steady_clock::now() - begin;
  throw_error(ErrorCode::timeout,
              "the store's keeper has not answered for {} ms; it may be stopped (SIGSTOP, a debugger)",
              std::chrono::ceil<std::chrono::milliseconds>(waited).count());
}

}  // namespace

Client& Client::here(std::shared_ptr<Client>& client) {
  if (client->pid_ != current_pid())
    client = std::make_shared<Client>(client->directories_, client->options_);
  return *client;
}

Packet Client::exchange(const std::function<Bytes()>& question, std::span<const int> fds,
                        Deadline deadline) {
  const LockGuard lock(mutex_);
  return exchange_locked(question, fds, deadline);
}

/// Asks a question, again if the keeper ends. Drops the link after any error, such as one for lack of descriptors here,
/// because a late answer would be taken for the answer to the next question.
Packet Client::exchange_locked(const std::function<Bytes()>& question, std::span<const int> fds,
                               Deadline deadline) {
  for (const auto begin = std::chrono::steady_clock::now();;) {
    if (!link_) connect(deadline);
    try {
      Packet answer = link_->request(question(), fds, deadline);
      send_notes();
      return answer;
    } catch (const Error& error) {
      link_.reset();
      if (error.code() != ErrorCode::peer_died || deadline.has_passed()) rethrow(error, begin);
    }
  }
}

/// Starts the keeper, unless another process is quicker.
void Client::start() {
  try {
    start_keeper(options_.command, directories_.environment());
  } catch (const Error&) {
    link_ = try_connect();
    if (!link_) throw;
  }
}

std::optional<Link> Client::try_connect() const {
  try {
    return Link::connect(directories_, Deadline::after(kKeeperPatience));
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Connects, and tells the keeper what it cannot know. Begins anew if the keeper ends before it has answered.
void Client::connect(Deadline deadline) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    while (!link_) {
      reach(deadline);
      restore_all(deadline);
    }
  } catch (const Error& error) {
    rethrow(error, begin);
  }
}

/// Repeats the reservations, which the worker forgets with the connection, and gives back the versions that another keeper
/// knew of.
void Client::restore_all(Deadline deadline) {
  std::erase_if(reserved_, [](const auto& version) { return version.expired(); });
  for (const auto& reserved : reserved_)
    if (const auto version = reserved.lock(); version && link_) reserve_again(*version, deadline);
  std::erase_if(read_, [](const auto& read) { return read.expired(); });
  for (const auto& read : read_)
    if (const auto version = read.lock(); version && link_ && version->keeper != link_->welcome().keeper)
      restore(*version, deadline);
}

void Client::reach(Deadline deadline) {
  for (bool has_started = false; !link_;) {
    try {
      link_ = Link::connect(directories_, deadline);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_died || deadline.has_passed()) throw;
      if (!may_start_keeper(options_))
        throw Error(ErrorCode::peer_died,
                    "the store has no keeper, and this process may not start one (autostart, "
                    "ONECOPY_STORE_AUTOSTART): run `onecopy store serve`");
      if (has_started) std::this_thread::sleep_for(kNextTry);
      else start();
      has_started = true;
    }
  }
}

/// Asks a question while connecting. If the keeper refuses, calls `refused`. If the keeper ends, there is no link
/// afterwards.
void Client::ask_while_connecting(const Bytes& question, std::span<const int> fds, Deadline deadline,
                                  const std::function<void(const Error&)>& refused) {
  Packet answer;
  try {
    answer = link_->request(question, fds, deadline);
  } catch (const Error& error) {
    link_.reset();
    if (error.code() != ErrorCode::peer_died || deadline.has_passed()) throw;
    return;
  }
  try {
    unpack<Done>(answer.bytes);
  } catch (const Error& error) {
    refused(error);
  }
}

/// Gives a version that is read here back to a new keeper. If the keeper refuses the version, the version stays mapped here.
void Client::restore(ReadVersion& read, Deadline deadline) {
  if (read.kept == 0) return;
  const Bytes question = pack(Restore{read.version, read.keeper});
  ask_while_connecting(question, numbers_of(read.files), deadline, [&](const Error& error) {
    log_warning("the store does not take back version {} of \"{}\": {}", read.version.number,
                read.version.name, error.what());
  });
  if (link_) read.keeper = link_->welcome().keeper;
}

/// Repeats a reservation. If the limit is exceeded by now, the draft is refused when it is published.
void Client::reserve_again(const VersionRecord& version, Deadline deadline) {
  ask_while_connecting(pack(Reserve{version}), {}, deadline, [](const Error& error) {
    log_info("the store has no room for a draft any longer: {}", error.what());
  });
}

std::optional<Reading> Client::open(const std::string& name, std::uint64_t number, const Reading* known,
                                    Deadline deadline) {
  ReleasableLock lock(mutex_);
  const Token token = known ? known->version().token : Token{};
  const bool keeps = ReadVersion::may_keep_more();
  Packet packet = exchange_locked([&] { return pack(Open{name, number, token, keeps}); }, {}, deadline);
  auto opened = unpack<Opened>(packet.bytes);
  if (packet.fds.empty()) {
    if (known) return std::nullopt;
    throw Error(ErrorCode::protocol, "the store's keeper sent a version without its descriptors");
  }
  auto read = std::make_shared<ReadVersion>(std::move(opened.version), link_->welcome().keeper,
                                            std::move(packet.fds), keeps);
  point("store.client.opened");
  remember(read_, read);
  Reading reading(shared_from_this(), std::move(read));
  lock.unlock();
  LinkWatch::begin(shared_from_this());
  return reading;
}

ReservedRoom Client::reserve(const VersionRecord& version, Deadline deadline) {
  const LockGuard lock(mutex_);
  auto reserved = std::make_shared<const VersionRecord>(version);
  unpack<Done>(exchange_locked([&] { return pack(Reserve{version}); }, {}, deadline).bytes);
  remember(reserved_, reserved);
  return {reserved.get(), [client = shared_from_this(), reserved](const void*) {
            client->note(pack(Unreserve{reserved->token}));
          }};
}

Welcome Client::welcome(Deadline deadline) {
  const LockGuard lock(mutex_);
  if (!link_) connect(deadline);
  return link_->welcome();
}

void Client::rejoin() {
  const LockGuard lock(mutex_);
  if (link_ && !link_->is_closed()) return;
  const Deadline deadline = Deadline::after(kKeeperPatience);
  link_.emplace(Link::connect(directories_, deadline));
  restore_all(deadline);
}

std::string Client::home(Deadline deadline) {
  const LockGuard lock(mutex_);
  if (!link_) connect(deadline);
  return link_->home();
}

void Client::note(Bytes message) noexcept {
  if (pid_ != current_pid()) return;  // the locks may have been held at the fork
  try {
    const LockGuard lock(notes_mutex_);
    if (notes_.empty() || notes_.back() != message) notes_.push_back(std::move(message));
  } catch (const std::exception& error) {
    log_debug([&] { return std::string("the store is not told of an end: ") + error.what(); });
  }
  if (!mutex_.try_lock()) return;  // the thread that asks sends the notes afterwards
  send_notes();
  mutex_.unlock();
}

/// Sends the notes. If there is no connection, or its socket has no room because the worker is stopped, drops them: the
/// keeper looks by itself, and a reservation ends with the connection.
void Client::send_notes() noexcept {
  try {
    const LockGuard lock(notes_mutex_);
    for (const Bytes& note : std::exchange(notes_, {}))
      if (link_ && !link_->try_send(note)) break;
  } catch (const std::exception& error) {
    log_debug([&] { return std::string("the store is not told of an end: ") + error.what(); });
  }
}

}  // namespace onecopy::store
