// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/tls_link.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "os/log.h"

namespace onecopy::transport {
namespace {

using std::chrono::steady_clock;

std::int64_t now_ns() noexcept { return steady_clock::now().time_since_epoch().count(); }

/// Sets how long the kernel sends again what the other side does not accept. The kernel measures from the first packet that
/// was lost until all are acknowledged, so a row of short cuts counts as a long one: TlsTransport notices a cut earlier.
void set_timeout(int fd, std::chrono::milliseconds timeout) {
  const auto value = static_cast<unsigned>(3 * timeout.count());
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, sizeof value);
}

/// Limits the pauses after which the kernel sends lost packets again: pauses that double would make a connection work again
/// only after up to twice the time of a cut. The kernel gives up after 15 attempts, which must take longer than the timeout.
void limit_pauses(int fd, std::chrono::milliseconds timeout) {
  constexpr int kMaxPause = 44;  // TCP_RTO_MAX_MS, from Linux 6.15 on
  constexpr std::int64_t kMinMs = 1000, kMaxMs = 120'000;
  const int pause = static_cast<int>(std::clamp<std::int64_t>(timeout.count() / 8, kMinMs, kMaxMs));
  ::setsockopt(fd, IPPROTO_TCP, kMaxPause, &pause, sizeof pause);
}

/// Limits the unsent bytes in the socket, so that small messages can go before the rest of a large one.
void limit_unsent(int fd) {
  constexpr int kBytes = 256 << 10;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kBytes, sizeof kBytes);
}

/// Returns whether the other host has not acknowledged all bytes that the socket has taken, sent or not.
bool is_any_unacknowledged(int fd) noexcept {
  int bytes = 0;
  return ::ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes != 0;
}

}  // namespace

TlsLink::TlsLink(std::unique_ptr<TlsStream> stream, Side side, std::chrono::milliseconds peer_timeout,
                 std::function<void(int)> rearm)
    : stream_(std::move(stream)),
      inbox_(side == Side::client),
      fd_(stream_->fd()),
      rearm_(std::move(rearm)),
      heard_ns_(now_ns()) {
  set_timeout(fd_, peer_timeout);
  limit_pauses(fd_, peer_timeout);
  limit_unsent(fd_);
}

void TlsLink::put(Message message, Stream stream, Deadline until) {
  Message lent = outgoing(std::move(message), stream);
  if (is_closed()) return;
  const bool has_tensors = !lent.tensors.empty();
  const Outbox::Position position = outbox_.put(std::move(lent));
  if (is_in_burst() && outbox_.fits_one_record(position)) return leave_to_loop();
  pump();
  if (outbox_.has_sent(position)) return;
  const auto with_stream = [&](auto&& change) {
    const LockGuard lock(streaming_);
    return change();
  };
  if (!outbox_.wait_for_room(position, until) && with_stream([&] { return outbox_.withdraw(position); })) {
    pump();
    throw_no_room();
  }
  if (!has_tensors || is_closed()) return;
  while (with_stream([&] { return outbox_.keep(position); })) continue;
  pump();  // another thread may have found the stream in use
}

/// Returns whether puts follow each other closely. A thread that waits for each answer does not make a burst, because a
/// round trip takes longer.
bool TlsLink::is_in_burst() noexcept {
  constexpr std::int64_t kCloseNs = 25'000;
  constexpr int kBurst = 4;
  const std::int64_t now = now_ns();
  const bool is_close = now - last_put_ns_.exchange(now, std::memory_order_relaxed) < kCloseNs;
  const int close = is_close ? close_puts_.load(std::memory_order_relaxed) + 1 : 0;
  close_puts_.store(std::min(close, kBurst), std::memory_order_relaxed);
  return close >= kBurst;
}

/// Asks the loop to send. The message is in the outbox before the request, and the loop resets the request before it
/// reads the outbox, so no message is missed.
void TlsLink::leave_to_loop() noexcept {
  if (!is_left_to_loop_.exchange(true)) rearm();
}

void TlsLink::put_frame(FrameKind kind, Bytes&& bytes) {
  outbox_.put_frame(kind, std::move(bytes));
  pump();
}

void TlsLink::rearm() const noexcept {
  try {
    rearm_(fd_);
  } catch (const std::exception& error) {
    log_warning(fmt::format("a connection to another host is not looked at: {}", error.what()));
  }
}

/// Sends what is in the outbox. If another thread has the stream, that thread sends it. If the socket has no room, the
/// poller tells the loop when there is some.
void TlsLink::pump() noexcept {
  while (streaming_.try_lock()) {
    auto progress = Progress::done;
    {
      const LockGuard lock(streaming_, std::adopt_lock);
      progress = send_some(false);
    }
    outbox_.window().tell_waiters();
    if (progress == Progress::interrupted) rearm();
    if (progress != Progress::done || outbox_.is_empty()) return;
  }
}

TlsLink::Progress TlsLink::send_some(bool is_beat) noexcept {
  if (is_broken_) return Progress::blocked;
  try {
    return send_records(is_beat);
  } catch (const std::exception&) {  // what arrived before the error is received first
    is_broken_ = true;
    outbox_.give_up();
    return Progress::interrupted;
  }
}

TlsLink::Progress TlsLink::send_records(bool is_beat) {
  constexpr int kRecordsInATurn = 64;
  has_unsent_ = true;
  for (int i = 0; i < kRecordsInATurn; ++i) {
    if (!stream_->has_room() && !stream_->flush()) return Progress::blocked;
    const ByteSpan record = outbox_.next_record(is_beat);
    if (record.empty()) {
      has_unsent_ = !stream_->flush();
      return has_unsent_ ? Progress::blocked : Progress::done;
    }
    is_beat = false;
    stream_->write(record);
  }
  return Progress::interrupted;
}

void TlsLink::receive(Inbox::Arrived& arrived) {
  stream_->begin_turn();
  while (const std::size_t got = stream_->read(inbox_.room())) {
    heard_ns_.store(now_ns(), std::memory_order_relaxed);
    inbox_.take(got, arrived);
  }
  if (is_broken_ && !stream_->may_have_more())
    throw Error(ErrorCode::peer_died, "the connection to another host has ended");
}

Inbox::Arrived TlsLink::on_ready() noexcept {
  Inbox::Arrived arrived;
  auto progress = Progress::done;
  is_left_to_loop_ = false;
  {
    const LockGuard lock(streaming_);
    try {
      if (is_closed()) throw Error(ErrorCode::closed, "it was closed");
      receive(arrived);
      if (stream_->may_have_more()) progress = Progress::interrupted;
    } catch (const std::exception&) {
      arrived.end = std::current_exception();
    }
    if (const Progress sent = send_some(false); progress == Progress::done) progress = sent;
  }
  outbox_.window().tell_waiters();
  if (progress == Progress::interrupted) rearm();
  else if (progress == Progress::done && !outbox_.is_empty()) pump();
  return arrived;
}

void TlsLink::beat() noexcept {
  auto progress = Progress::done;
  {
    const LockGuard lock(streaming_);
    progress = send_some(true);
  }
  if (progress == Progress::interrupted) rearm();
  else if (progress == Progress::done && !outbox_.is_empty()) pump();
}

void TlsLink::close() noexcept {
  if (!is_closed_.exchange(true)) rearm();
}

bool TlsLink::has_arrived() const noexcept { return has_sent_all() && !is_any_unacknowledged(fd_); }

void TlsLink::end() noexcept {
  is_closed_ = true;
  ::shutdown(fd_, SHUT_RDWR);
  outbox_.give_up();
}

std::chrono::milliseconds TlsLink::unanswered() const noexcept {
  tcp_info info{};
  socklen_t size = sizeof info;
  ::getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &size);
  return std::chrono::milliseconds(is_any_unacknowledged(fd_) ? info.tcpi_last_ack_recv : 0);
}

std::chrono::seconds TlsLink::silence() const noexcept {
  return std::chrono::floor<std::chrono::seconds>(std::chrono::nanoseconds(now_ns() - heard_ns_.load()));
}

}  // namespace onecopy::transport
