// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/queue.h"

#include <fmt/format.h>

#include <string>

#include "channel/queue/channel.h"
#include "channel/queue/look_around.h"
#include "core/moved_from.h"
#include "onecopy/core/error.h"
#include "os/deadline_scope.h"
#include "os/log.h"

namespace onecopy {
namespace {

std::string described(const Tensor& tensor) { return tensor.layout().str(); }

std::string described(const Message& message) {
  return fmt::format("{} tensors and {} bytes", message.tensors.size(), message.data.size());
}

void log_put(const Channel& channel, const std::string& item) noexcept {
  log_debug([&] { return fmt::format("put {} into queue {:016x}", item, channel.id()); });
}

template <class Item>
void log_got(const Channel& channel, const Item& item) noexcept {
  log_debug([&] { return fmt::format("got {} from queue {:016x}", described(item), channel.id()); });
}

/// Puts the item. Describes the item for the log first, because a tensor that is moved into the queue is empty
/// afterwards.
template <class Item>
bool put_into(Channel& channel, Item&& item, Deadline deadline, Stream stream) {
  std::optional<std::string> what;
  if (logs_debug()) [[unlikely]]
    what = described(item);
  channel.become_producer();
  const bool put =
      channel.sender().put(channel.session(deadline), std::forward<Item>(item), deadline, stream);
  channel.note_change();
  if (put && what) log_put(channel, *what);
  return put;
}

/// Calls take(deadline). If the queue ends with its producers, looks from time to time whether one is left.
template <class Take>
auto take_from(Channel& channel, Deadline deadline, Take&& take) {
  const auto take_until = [&](Deadline pause) {
    auto taken = take(pause);
    channel.note_change();
    return taken;
  };
  auto taken = !channel.ends_with_producers()
                   ? take_until(deadline)
                   : take_looking_around(deadline, take_until, [&] { return channel.close_if_deserted(); });
  if (taken) log_got(channel, *taken);
  return taken;
}

/// Takes an item by Receiver::get() or get_tensor().
template <class Get>
auto get_from(Channel& channel, Get get, Deadline deadline, Stream stream) {
  return take_from(channel, deadline, [&](Deadline pause) {
    return (channel.receiver().*get)(channel.session(pause), pause, stream);
  });
}

}  // namespace

Queue Queue::create(const QueueOptions& options) { return Queue(Channel::create(options)); }

Queue Queue::connect(const Handle& handle, std::chrono::nanoseconds timeout) {
  return Queue(Channel::connect(handle, Deadline::after(timeout)));
}

Channel& Queue::channel() const { return of_object(channel_, "Queue"); }

Queue::~Queue() {
  if (channel_) channel_->leave();
}

Handle Queue::handle() const { return channel().handle(); }

void Queue::put(const Tensor& tensor, Stream stream) { put_into(channel(), tensor, kForever, stream); }

void Queue::put(const Message& message, Stream stream) { put_into(channel(), message, kForever, stream); }

void Queue::put(Tensor&& tensor, Stream stream) {
  put_into(channel(), std::move(tensor), kForever, stream);
}

bool Queue::try_put(const Tensor& tensor, std::chrono::nanoseconds timeout, Stream stream) {
  return put_into(channel(), tensor, Deadline::after(timeout), stream);
}

bool Queue::try_put(const Message& message, std::chrono::nanoseconds timeout, Stream stream) {
  return put_into(channel(), message, Deadline::after(timeout), stream);
}

bool Queue::try_put(Tensor&& tensor, std::chrono::nanoseconds timeout, Stream stream) {
  return put_into(channel(), std::move(tensor), Deadline::after(timeout), stream);
}

bool Queue::try_put_at_once(const Message& message, Stream stream) {
  channel().become_producer();
  Session* const session = channel().joined_session();
  if (!session || !channel().sender().put_at_once(*session, message, stream)) return false;
  channel().note_change();
  if (logs_debug()) log_put(channel(), described(message));
  return true;
}

void Queue::prepare_put(const Message& message, std::chrono::nanoseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  channel().become_producer();
  channel().sender().prepare(channel().session(deadline), message, deadline);
}

bool Queue::wait_for_space(std::chrono::nanoseconds timeout) const {
  return channel().ring().wait_to_put(Deadline::after(timeout));
}

Message Queue::get(Stream stream) { return *get_from(channel(), &Receiver::get, kForever, stream); }

std::optional<Message> Queue::try_get(std::chrono::nanoseconds timeout, Stream stream) {
  return get_from(channel(), &Receiver::get, Deadline::after(timeout), stream);
}

std::optional<Message> Queue::try_get_at_once(Stream stream) {
  auto message = channel().receiver().get_at_once(channel().session(kNow), stream);
  channel().note_change();
  if (message) log_got(channel(), *message);
  return message;
}

Tensor Queue::get_tensor(Stream stream) {
  return *get_from(channel(), &Receiver::get_tensor, kForever, stream);
}

std::optional<Tensor> Queue::try_get_tensor(std::chrono::nanoseconds timeout, Stream stream) {
  return get_from(channel(), &Receiver::get_tensor, Deadline::after(timeout), stream);
}

std::uint64_t Queue::size() const { return channel().ring().size(); }

std::uint64_t Queue::maxsize() const { return channel().ring().max_items(); }

void Queue::close() {
  channel().ring().close(Deadline::after(reply_timeout()));
  channel().note_change();
}

int Queue::ready_fd() const {
  Channel& queue = channel();
  if (!queue.ends_with_producers()) return queue.ready_fd();
  return queue.ready_fd([&queue] {
    try {
      queue.close_if_deserted();
    } catch (const Error&) {  // a damaged ring, which get() reports
    }
  });
}

bool Queue::is_closed() const { return channel().close_if_deserted(); }

}  // namespace onecopy
