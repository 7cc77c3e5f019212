// SPDX-License-Identifier: Apache-2.0
#include "share/conversation.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "onecopy/core/error.h"
#include "onecopy/core/point.h"
#include "onecopy/os/log.h"
#include "share/fork_page.h"
#include "share/patience.h"
#include "share/process_name.h"

namespace onecopy {
namespace {

bool is_news(const Packet& packet) {
  const wire::Type type = wire::type_of(packet.bytes);
  return type == wire::Type::retire || type == wire::Type::keep;
}

}  // namespace

Conversation::Conversation(UnixSocket socket, int pid)
    : pid_(pid), socket_(std::move(socket)), is_over_(!socket_) {}

template <class F>
auto Conversation::or_say_silent(F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::timeout) throw;
    throw Error(ErrorCode::timeout,
                fmt::format("process {}, which holds this memory, did not answer: {}; it may be stopped "
                            "(SIGSTOP, a debugger) or short of CPU, open the handle again once it runs",
                            pid_, e.what()));
  }
}

void Conversation::say(const Bytes& message) {
  or_say_silent([&] { socket_.send(message, {}, broker_patience()); });
}

void Conversation::ask_ahead(Bytes question) {
  or_say_silent([&] { send_question(std::move(question), {}); });
}

Packet Conversation::hear() {
  return or_say_silent([&] { return receive_soon(); });
}

Packet Conversation::hear_answer() {
  return or_say_silent([&] { return receive_answer(); });
}

void Conversation::watch(Watch& watch) {
  watch_ = &watch;
  if (is_over_) return;
  watch.add(
      socket_.fd(), [this] { on_readable(); }, true);
}

Packet Conversation::ask(Bytes question, wire::Type answer, std::span<const int> fds,
                         WhenSilent when_silent) {
  Packet packet;
  try {
    const std::lock_guard lock(mutex_);
    if (is_over_) throw Error(ErrorCode::peer_died, "that process is gone");
    if (is_silent_ && when_silent == WhenSilent::leave) ask_and_leave(std::move(question), fds);
    packet = or_say_silent([&] {
      send_question(std::move(question), fds);
      return receive_answer();
    });
  } catch (const Error&) {
    rearm();
    throw;
  }
  rearm();
  wire::expect(packet.bytes, answer);
  return packet;
}

bool Conversation::try_send(const Bytes& message) {
  const std::lock_guard lock(telling_mutex_);  // the socket may be let go of, and its number be another's
  return !is_over_ && socket_.try_send(message);
}

void Conversation::number(Bytes& question) {
  if (++last_serial_ == 0) ++last_serial_;
  wire::set_serial(question, last_serial_);
}

void Conversation::send_question(Bytes question, std::span<const int> fds) {
  number(question);
  socket_.send(question, fds, broker_patience());
}

/// It is read, and answered, when the broker goes on; unless what it has not read yet leaves no room. Throws timeout.
void Conversation::ask_and_leave(Bytes question, std::span<const int> fds) {
  number(question);
  socket_.try_send(question, fds);
  throw Error(
      ErrorCode::timeout,
      fmt::format(
          "process {} has not answered an earlier question yet; it may be stopped (SIGSTOP, a debugger)",
          pid_));
}

/// A broker that is not busy answers in less time than it takes to fall asleep and be woken.
Packet Conversation::receive_soon() {
  constexpr std::chrono::microseconds kSoon{100};
  if (auto packet = socket_.try_receive_for(kSoon)) return heard(std::move(*packet));
  try {
    return heard(socket_.receive(broker_patience()));
  } catch (const Error& e) {
    if (e.code() ==
        ErrorCode::timeout) {  // what was sent will be answered, which is the end of the silence
      is_silent_ = true;
      point("conversation.silence");
    }
    throw;
  }
}

Packet Conversation::heard(Packet packet) noexcept {
  is_silent_ = false;
  return packet;
}

/// Answers to questions that were given up arrive late and belong to nobody.
Packet Conversation::receive_answer() {
  for (;;) {
    Packet packet = receive_soon();
    if (is_news(packet)) on_news(std::move(packet));
    else if (wire::serial_of(packet.bytes) == last_serial_) return packet;
  }
}

/// What came during a question, the end of the connection included, was not read by the watch thread. Without the
/// lock for reading, which that tries to take.
void Conversation::rearm() {
  const std::lock_guard lock(telling_mutex_);  // as in try_send()
  if (watch_ && socket_) watch_->rearm(socket_.fd());
}

void Conversation::on_readable() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock && !is_over_) hear_news();  // else a question is being answered: it rearms the watch
}

/// REQUIRES: mutex_.
void Conversation::hear_news() {
  try {
    while (auto packet = socket_.try_receive()) {
      is_silent_ = false;
      if (is_news(*packet)) on_news(std::move(*packet));
      else if (wire::serial_of(packet->bytes) == 0)
        throw Error(ErrorCode::protocol, "an owner sent something it was not asked for");
    }
  } catch (const Error& e) {
    if (e.code() == ErrorCode::out_of_descriptors) rearm();  // one packet is lost, the others are not
    if (e.code() != ErrorCode::peer_died) throw;
    is_over_ = true;
    watch_->remove(socket_.fd());
  }
}

bool Conversation::try_end() {
  const std::unique_lock reading(mutex_, std::try_to_lock);
  if (!reading) return false;
  try {
    if (!is_over_) hear_news();
  } catch (const Error& e) {
    log_warning(fmt::format("process {} has ended: {}", pid_, e.what()));
  }
  watch_->remove(socket_.fd());
  is_over_ = true;
  return true;
}

void Conversation::close() noexcept {
  const std::scoped_lock lock(mutex_, telling_mutex_);
  socket_ = UnixSocket();
}

void Conversation::lock() {
  mutex_.lock();
  telling_mutex_.lock();
}

void Conversation::unlock() {
  telling_mutex_.unlock();
  mutex_.unlock();
}

void Conversation::go_on_in_child(UnixSocket socket) noexcept {
  is_silent_ = false;
  if (socket) socket_ = std::move(socket);
  else is_over_ = true;
  if (!is_over_) is_over_ = !greet_owner(socket_);
}

void acknowledge_to(const std::string& name, std::uint64_t hold) noexcept {
  constexpr std::chrono::milliseconds kPatience{100};  // its socket's queue is full
  try {
    UnixSocket socket = UnixSocket::connect(socket_name(name), kPatience);
    if (socket.peer().uid == geteuid())
      socket.try_send(wire::pack(wire::Type::acknowledge, wire::Acknowledge{hold}));
  } catch (const std::exception&) {  // it is gone, and its holds with it; or they expire
  }
}

}  // namespace onecopy
