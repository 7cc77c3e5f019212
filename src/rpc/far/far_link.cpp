// SPDX-License-Identifier: Apache-2.0
#include "rpc/far/far_link.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "channel/ring/ring_wait.h"
#include "device/backend.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/share.h"

namespace onecopy::rpc {
namespace {

using std::chrono::steady_clock;

constexpr int kAtOnce = 64;  // frames, before another link's turn

std::int64_t now_ns() noexcept { return steady_clock::now().time_since_epoch().count(); }

/// A cut connection ends within four seconds, whether or not something is being sent.
void notice_cuts(int fd) {
  const auto set = [&](int option, unsigned value) {
    ::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value);
  };
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  set(TCP_KEEPIDLE, 1);
  set(TCP_KEEPINTVL, 1);
  set(TCP_KEEPCNT, 3);
  set(TCP_USER_TIMEOUT, 3000);
}

[[noreturn]] void throw_ended(int error) {
  throw Error(ErrorCode::peer_died, "the connection to another host has ended", error,
              error != 0 ? ErrorDomain::posix : ErrorDomain::none);
}

/// For calls that returned -1: false when they are to be tried again later.
bool is_interruption(int error) {
  if (error == EINTR) return true;
  if (error == EAGAIN) return false;
  throw_ended(error);
}

/// The part of [begin, begin + size) behind the first `done` bytes of the whole.
void add_rest(iovec*& at, const void* begin, std::size_t size, std::size_t& done) {
  const std::size_t skipped = std::min(done, size);
  done -= skipped;
  if (skipped == size) return;
  auto* bytes = static_cast<std::byte*>(const_cast<void*>(begin));
  *at++ = {bytes + skipped, size - skipped};
}

/// In memory of the CPU. Waits for the work that the stream has.
Tensor on_host(const Tensor& tensor, Stream stream) {
  if (tensor.device() == kCpu) return tensor;
  Tensor made = empty(Layout(tensor.dtype(), tensor.shape()));
  backend(tensor.device().type).synchronize(tensor.device().index, stream);
  copy_into(tensor.view(), made.view());
  return made;
}

}  // namespace

// --- FrameSender

std::uint64_t FrameSender::push(Item&& item, std::uint64_t bytes) {
  waiting_.fetch_add(1);
  const LockGuard lock(items_mutex_);
  item.end = put_ += bytes;
  items_.push_back(std::move(item));
  return put_;
}

void FrameSender::put_hello(Bytes&& hello) {
  const std::uint64_t bytes = hello.size();
  push({std::move(hello), {}}, bytes);
}

std::uint64_t FrameSender::put(Message&& message) {
  Parcel parcel(std::move(message));
  const std::uint64_t bytes = parcel.bytes();
  return push({{}, std::move(parcel)}, bytes);
}

bool FrameSender::has_room(std::uint64_t end) const noexcept {
  return sent_.load() + kMostWaiting >= end || is_over_.load();
}

bool FrameSender::wait_for_room(std::uint64_t end, Deadline until) {
  if (has_room(end)) return true;
  const LockGuard lock(room_mutex_);
  waiters_.fetch_add(1);
  while (!has_room(end) && !until.has_passed())
    has_changed_.wait_until(room_mutex_, steady_clock::now() + until.left(kSleepSlice));
  waiters_.fetch_sub(1);
  return has_room(end);
}

void FrameSender::tell_waiters() noexcept {
  if (waiters_.load() == 0) return;
  const LockGuard lock(room_mutex_);
  has_changed_.notify_all();
}

void FrameSender::give_up() noexcept {
  is_over_ = true;
  tell_waiters();
}

void FrameSender::keep(std::uint64_t end) {
  const LockGuard sending(sending_);
  if (item_ && item_->parcel && item_->end == end) {
    item_->parcel->keep();
    if (frame_) frame_->payload = item_->parcel->last();
    return;
  }
  const LockGuard lock(items_mutex_);
  for (Item& item : items_)
    if (item.parcel && item.end == end) item.parcel->keep();
}

bool FrameSender::withdraw(std::uint64_t end) {
  const LockGuard sending(sending_);
  if (item_ && item_->parcel && item_->end == end) {
    if (item_->parcel->is_given_out()) return false;
    item_->parcel->withdraw();
    if (frame_) frame_->payload = item_->parcel->last();
    return true;
  }
  const LockGuard lock(items_mutex_);
  const auto at = std::find_if(items_.begin(), items_.end(),
                               [&](const Item& item) { return item.parcel && item.end == end; });
  if (at == items_.end()) return false;
  at->parcel.reset();
  return true;
}

void FrameSender::make_frame(FrameKind kind, ByteSpan payload) {
  const FrameHead head = seal_.head(kind, payload.size());
  frame_ = Frame{head, payload, seal_.mac(head, payload)};
}

/// Of the item at hand, or of the next one. False when there is none.
bool FrameSender::next_frame(bool is_due) {
  for (;;) {
    if (item_) {
      const FrameKind kind = item_->parcel ? item_->parcel->kind() : FrameKind::hello;
      if (const auto payload = item_->parcel ? item_->parcel->next() : std::nullopt)
        return make_frame(kind, *payload), true;
      sent_ = item_->end;  // its withdrawn bytes count as well
      item_.reset();
      waiting_.fetch_sub(1);
    }
    const LockGuard lock(items_mutex_);
    if (items_.empty()) break;
    item_ = std::move(items_.front());
    items_.pop_front();
    if (!item_->hello.empty()) return make_frame(FrameKind::hello, item_->hello), true;
  }
  if (is_due) make_frame(FrameKind::heartbeat, {});
  return is_due;
}

bool FrameSender::send_frame() {
  while (frame_->sent < frame_->size()) {
    iovec parts[3];
    iovec* end = parts;
    std::size_t done = frame_->sent;
    add_rest(end, &frame_->head, sizeof frame_->head, done);
    add_rest(end, frame_->payload.data(), frame_->payload.size(), done);
    add_rest(end, &frame_->mac, sizeof frame_->mac, done);
    msghdr what{};
    what.msg_iov = parts;
    what.msg_iovlen = static_cast<std::size_t>(end - parts);
    const ssize_t sent = ::sendmsg(fd_, &what, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) frame_->sent += static_cast<std::size_t>(sent);
    else if (!is_interruption(errno)) return false;
  }
  if (frame_->head.kind != FrameKind::heartbeat) sent_.fetch_add(frame_->payload.size());
  frame_.reset();
  return true;
}

bool FrameSender::send(bool is_due) {
  if (!sending_.try_lock()) return false;
  bool is_more = true;
  {
    const LockGuard lock(sending_, std::adopt_lock);
    is_more = send_some(is_due);
  }
  tell_waiters();
  // Not a load: a thread that has found the lock taken counted its item before, and this sees it.
  return is_more || waiting_.fetch_add(0) != 0;
}

bool FrameSender::send_some(bool is_due) {
  for (int i = 0; i < kAtOnce; ++i) {
    if (!frame_ && !next_frame(is_due)) return false;
    is_due = false;
    if (!send_frame()) return true;
  }
  return true;
}

// --- FrameReceiver

/// A frame that has no payload yet has its head alone to be filled.
bool FrameReceiver::fill() {
  const std::size_t wanted = has_head_ ? frame_bytes() : sizeof head_;
  while (got_ < wanted) {
    iovec parts[3];
    iovec* end = parts;
    std::size_t done = got_;
    add_rest(end, &head_, sizeof head_, done);
    if (has_head_) {
      add_rest(end, payload_.data(), payload_.size(), done);
      add_rest(end, &mac_, sizeof mac_, done);
    }
    msghdr what{};
    what.msg_iov = parts;
    what.msg_iovlen = static_cast<std::size_t>(end - parts);
    const ssize_t got = ::recvmsg(fd_, &what, MSG_DONTWAIT);
    if (got > 0) got_ += static_cast<std::size_t>(got);
    else if (got == 0) throw_ended(0);
    else if (!is_interruption(errno)) return false;
  }
  return true;
}

void FrameReceiver::begin_frame() {
  seal_.expect(head_);
  if (!has_hello_ && head_.kind != FrameKind::hello)
    refuse_frame("came before its sender said which member it is");
  has_head_ = true;
  if (head_.kind == FrameKind::more) {
    payload_ = assembly_.room(head_.bytes);
    return;
  }
  buffer_.resize(head_.bytes);
  payload_ = buffer_;
}

void FrameReceiver::end_frame(const Handlers& handlers) {
  seal_.check(head_, payload_, mac_);
  got_ = 0;
  has_head_ = false;
  if (head_.kind == FrameKind::hello) {
    if (has_hello_) refuse_frame("names its sender again");
    has_hello_ = true;
    return handlers.hello(payload_);
  }
  if (head_.kind == FrameKind::message) assembly_.begin(payload_);
  else if (head_.kind == FrameKind::more) assembly_.fill(payload_.size());
  else if (head_.kind == FrameKind::withdrawn) assembly_.withdraw();
  if (head_.kind == FrameKind::heartbeat || !assembly_.is_whole()) return;
  if (auto message = assembly_.take()) handlers.message(*std::move(message));
}

void FrameReceiver::receive(const Handlers& handlers) {
  for (int i = 0; i < kAtOnce; ++i) {
    if (!has_head_) {
      if (!fill()) return;
      begin_frame();
    }
    if (!fill()) return;
    end_frame(handlers);
  }
}

// --- FarLink

FarLink::FarLink(StreamSocket socket, const FrameKeys& keys, Side side, std::shared_ptr<Event> wake)
    : socket_(std::move(socket)),
      sender_(socket_.fd(), side == Side::client ? keys.from_client : keys.from_listener),
      receiver_(socket_.fd(), side == Side::client ? keys.from_listener : keys.from_client,
                side == Side::client),
      wake_(std::move(wake)),
      heard_ns_(now_ns()) {
  notice_cuts(socket_.fd());
}

void FarLink::put(const Message& message, Stream stream, Deadline until) {
  Message lent{message.tag, message.data, {}};
  for (const Tensor& tensor : message.tensors) lent.tensors.push_back(on_host(tensor, stream));
  if (is_closed()) return;
  const bool has_tensors = !lent.tensors.empty();
  const std::uint64_t end = sender_.put(std::move(lent));
  send_or_leave();
  if (sender_.has_sent(end)) return;
  if (!sender_.wait_for_room(end, until) && sender_.withdraw(end)) {
    send_or_leave();
    throw Error(ErrorCode::timeout, "the connection to another host has not taken the message in time");
  }
  if (!has_tensors) return;
  sender_.keep(end);
  send_or_leave();  // another thread may have found the lock taken
}

void FarLink::put_hello(Bytes&& hello) {
  sender_.put_hello(std::move(hello));
  send_or_leave();
}

/// Leaves to the far thread what the socket does not take now, and the end of the connection.
void FarLink::send_or_leave() noexcept {
  try {
    if (sender_.send()) wake_->set();
  } catch (const std::exception&) {
    wake_->set();
  }
}

void FarLink::close() noexcept {
  if (is_closed_.exchange(true)) return;
  wake_->set();
}

bool FarLink::has_arrived() const noexcept {
  int unacknowledged = 0;
  return has_sent_all() && (::ioctl(socket_.fd(), SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0);
}

void FarLink::end() noexcept {
  is_closed_ = true;
  ::shutdown(socket_.fd(), SHUT_RDWR);
  sender_.give_up();
}

std::chrono::seconds FarLink::silence() const noexcept {
  return std::chrono::floor<std::chrono::seconds>(std::chrono::nanoseconds(now_ns() - heard_ns_.load()));
}

void FarLink::receive(const FrameReceiver::Handlers& handlers) {
  heard_ns_.store(now_ns(), std::memory_order_relaxed);
  receiver_.receive(handlers);
}

}  // namespace onecopy::rpc
