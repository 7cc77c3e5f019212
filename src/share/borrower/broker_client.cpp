// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/broker_client.h"

#include <poll.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "core/point.h"
#include "core/throw_error.h"
#include "os/deadline.h"
#include "os/deadline_scope.h"
#include "os/log.h"
#include "share/owner/claim_memory.h"

namespace onecopy {
namespace {

bool is_unsolicited(const Packet& packet) {
  const wire::Type type = wire::type_of(packet.bytes);
  return type == wire::Type::retire || type == wire::Type::retain_mine;
}

}  // namespace

BrokerClient::BrokerClient(UnixSocket socket, int pid)
    : pid_(pid), socket_(std::move(socket)), is_over_(!socket_) {}

/// The right to ask, which one thread at a time has. A fork does not wait for the answer; in the child no thread asks.
class BrokerClient::RightToAsk {
 public:
  explicit RightToAsk(BrokerClient& conversation) noexcept : asking_(conversation.asking_) {
    while (asking_.exchange(1) != 0) asking_.wait(1);
  }
  ~RightToAsk() {
    asking_ = 0;
    asking_.notify_one();
  }
  RightToAsk& operator=(RightToAsk&&) = delete;

 private:
  std::atomic<int>& asking_;
};

template <class F>
auto BrokerClient::describe_timeout(F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::timeout) throw;
    throw_error(ErrorCode::timeout,
                "process {}, which holds this memory, did not answer: {}; it may be stopped "
                "(SIGSTOP, a debugger) or short of CPU, open the handle again once it runs",
                pid_, e.what());
  }
}

void BrokerClient::send(const Bytes& message) {
  describe_timeout([&] { socket_.send(message, {}, reply_timeout()); });
}

void BrokerClient::request_ahead(Bytes question) {
  number(question);
  describe_timeout([&] { send_question(question, {}); });
}

Packet BrokerClient::receive() {
  return describe_timeout([&] { return receive_soon(); });
}

Packet BrokerClient::receive_answer() {
  return describe_timeout([&] { return receive_answer(last_serial_); });
}

void BrokerClient::watch(EventLoop& loop) {
  loop_ = &loop;
  if (is_over_) return;
  loop.add(
      socket_.fd(), [this] { on_readable(); }, true);
}

Packet BrokerClient::request(Bytes question, wire::Type answer, std::span<const int> fds,
                             WhenSilent when_silent) {
  Packet packet;
  try {
    const RightToAsk right(*this);
    {
      const LockGuard lock(mutex_);
      if (is_over_) throw Error(ErrorCode::peer_died, "that process is gone");
      if (is_silent_ && when_silent == WhenSilent::leave) request_and_leave(std::move(question), fds);
      number(question);
    }
    packet = describe_timeout([&] {
      send_question(question, fds);
      return receive_answer(last_serial_);
    });
  } catch (const Error&) {
    rearm();
    throw;
  }
  rearm();
  wire::expect(packet.bytes, answer);
  return packet;
}

void BrokerClient::request_all(std::vector<Bytes> questions, std::size_t ahead,
                               const std::function<void(std::size_t, Packet)>& take) {
  try {
    const RightToAsk right(*this);
    describe_timeout([&] {
      std::size_t asked = 0;
      for (std::size_t heard = 0; heard < questions.size(); ++heard) {
        for (; asked < std::min(heard + ahead, questions.size()); ++asked) {
          number_while_open(questions[asked]);
          send_question(questions[asked], {});
        }
        take(heard, receive_answer(peer::serial_of(questions[heard])));
      }
    });
  } catch (const Error&) {
    rearm();
    throw;
  }
  rearm();
}

bool BrokerClient::try_send(const Bytes& message) {
  // Without the lock the socket could be closed before the call and its number be reused.
  const LockGuard lock(telling_mutex_);
  return !is_over_ && socket_.try_send(message);
}

void BrokerClient::number(Bytes& question) {
  if (++last_serial_ == 0) ++last_serial_;
  peer::set_serial(question, last_serial_);
}

void BrokerClient::number_while_open(Bytes& question) {
  const LockGuard lock(mutex_);
  if (is_over_) throw Error(ErrorCode::peer_died, "that process is gone");
  number(question);
}

/// Sends a question. Holds no mutex_, as the functions below: a fork takes mutex_ and must not wait for the broker.
void BrokerClient::send_question(const Bytes& question, std::span<const int> fds) {
  socket_.send(question, fds, reply_timeout());
  point("conversation.asked");
}

/// Leaves a question for a silent broker, which answers when it continues, unless its socket has no room. Always throws
/// timeout.
void BrokerClient::request_and_leave(Bytes question, std::span<const int> fds) {
  number(question);
  socket_.try_send(question, fds);
  throw_error(
      ErrorCode::timeout,
      "process {} has not answered an earlier question yet; it may be stopped (SIGSTOP, a debugger)", pid_);
}

/// Waits for a packet without mutex_. Spins at first, because a broker that is not busy answers sooner than a thread
/// falls asleep and wakes up.
Packet BrokerClient::receive_soon() {
  constexpr std::chrono::microseconds kSoon{100};
  const auto begin = std::chrono::steady_clock::now();
  do {
    if (auto packet = try_receive()) return std::move(*packet);
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() - begin < kSoon);
  const auto patience = reply_timeout();
  const Deadline deadline(patience);
  for (;;) {
    if (auto packet = try_receive()) return std::move(*packet);
    if (!deadline.wait_for(socket_.fd(), POLLIN)) fall_silent(patience);
  }
}

/// Notes that the broker is silent. Its answer to a question that was sent ends the silence.
void BrokerClient::fall_silent(std::chrono::milliseconds patience) {
  is_silent_ = true;
  point("conversation.silence");
  throw_error(ErrorCode::timeout, "it sent nothing within {} ms", patience.count());
}

/// Returns the next packet that is an answer, or nothing if there is none.
std::optional<Packet> BrokerClient::try_receive() {
  const LockGuard lock(mutex_);
  while (auto packet = socket_.try_receive()) {
    is_silent_ = false;
    if (!is_unsolicited(*packet)) return packet;
    on_unsolicited(std::move(*packet));
  }
  return {};
}

/// Returns the answer to the question of that number. Drops late answers to earlier questions.
Packet BrokerClient::receive_answer(std::uint32_t serial) {
  for (;;) {
    Packet packet = receive_soon();
    if (peer::serial_of(packet.bytes) == serial) return packet;
  }
}

/// Makes the watch thread look at the socket again, because it has ignored packets, or the end of the connection, while
/// a question was being asked. Holds no mutex_, which the watch thread tries to take.
void BrokerClient::rearm() {
  const LockGuard lock(telling_mutex_);  // as in try_send()
  if (loop_ && socket_) loop_->rearm(socket_.fd());
}

void BrokerClient::on_readable() {
  if (!mutex_.try_lock()) return;  // as below
  const LockGuard lock(mutex_, std::adopt_lock);
  if (asking_ == 0 && !is_over_) receive_unsolicited();  // if a thread asks, that thread rearms the watch
}

void BrokerClient::receive_unsolicited() {
  try {
    while (auto packet = socket_.try_receive()) {
      is_silent_ = false;
      if (is_unsolicited(*packet)) on_unsolicited(std::move(*packet));
      else if (peer::serial_of(packet->bytes) == 0)
        throw Error(ErrorCode::protocol, "an owner sent something it was not asked for");
    }
  } catch (const Error& e) {
    if (e.code() == ErrorCode::out_of_descriptors) rearm();  // only one packet is lost
    if (e.code() != ErrorCode::peer_died) throw;
    is_over_ = true;
    loop_->remove(socket_.fd());
    if (on_end) on_end();
  }
}

bool BrokerClient::try_end() {
  if (!mutex_.try_lock()) return false;
  const LockGuard reading(mutex_, std::adopt_lock);
  if (asking_ != 0) return false;
  try {
    if (!is_over_) receive_unsolicited();
  } catch (const Error& e) {
    log_warning("process {} has ended: {}", pid_, e.what());
  }
  loop_->remove(socket_.fd());
  is_over_ = true;
  return true;
}

void BrokerClient::close() noexcept {
  const LockGuard reading(mutex_);
  const LockGuard telling(telling_mutex_);
  socket_ = UnixSocket();
}

void BrokerClient::lock() {
  mutex_.lock();
  telling_mutex_.lock();
}

void BrokerClient::unlock() {
  telling_mutex_.unlock();
  mutex_.unlock();
}

void BrokerClient::go_on_in_child(UnixSocket socket) noexcept {
  asking_ = 0;
  is_silent_ = false;
  if (socket) socket_ = std::move(socket);
  else is_over_ = true;
  if (!is_over_) is_over_ = !greet_owner(socket_);
}

}  // namespace onecopy
