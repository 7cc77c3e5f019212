// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/queue.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "channel/queue/channel.h"
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
  const bool put =
      channel.sender().put(channel.session(deadline), std::forward<Item>(item), deadline, stream);
  channel.note_change();
  if (put && what) log_put(channel, *what);
  return put;
}

std::optional<Message> get_from(Channel& channel, Deadline deadline, Stream stream) {
  auto message = channel.receiver().get(channel.session(deadline), deadline, stream);
  channel.note_change();
  if (message) log_got(channel, *message);
  return message;
}

std::optional<Tensor> get_tensor_from(Channel& channel, Deadline deadline, Stream stream) {
  auto tensor = channel.receiver().get_tensor(channel.session(deadline), deadline, stream);
  channel.note_change();
  if (tensor) log_got(channel, *tensor);
  return tensor;
}

}  // namespace

Queue Queue::create(const QueueOptions& options) { return Queue(Channel::create(options)); }

Queue Queue::connect(const Handle& handle) { return Queue(Channel::connect(handle)); }

Queue::~Queue() {
  if (channel_) channel_->leave();
}

Handle Queue::handle() const { return channel_->handle(); }

void Queue::put(const Tensor& tensor, Stream stream) { put_into(*channel_, tensor, kForever, stream); }

void Queue::put(const Message& message, Stream stream) { put_into(*channel_, message, kForever, stream); }

void Queue::put(Tensor&& tensor, Stream stream) {
  put_into(*channel_, std::move(tensor), kForever, stream);
}

bool Queue::try_put(const Tensor& tensor, std::chrono::nanoseconds timeout, Stream stream) {
  return put_into(*channel_, tensor, Deadline::after(timeout), stream);
}

bool Queue::try_put(const Message& message, std::chrono::nanoseconds timeout, Stream stream) {
  return put_into(*channel_, message, Deadline::after(timeout), stream);
}

bool Queue::try_put(Tensor&& tensor, std::chrono::nanoseconds timeout, Stream stream) {
  return put_into(*channel_, std::move(tensor), Deadline::after(timeout), stream);
}

bool Queue::try_put_at_once(const Message& message, Stream stream) {
  Session* const session = channel_->joined_session();
  if (!session || !channel_->sender().put_at_once(*session, message, stream)) return false;
  channel_->note_change();
  if (logs_debug()) log_put(*channel_, described(message));
  return true;
}

void Queue::prepare_put(const Message& message, std::chrono::nanoseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  channel_->sender().prepare(channel_->session(deadline), message, deadline);
}

bool Queue::wait_for_space(std::chrono::nanoseconds timeout) const {
  return channel_->ring().wait_to_put(Deadline::after(timeout));
}

Message Queue::get(Stream stream) { return *get_from(*channel_, kForever, stream); }

std::optional<Message> Queue::try_get(std::chrono::nanoseconds timeout, Stream stream) {
  return get_from(*channel_, Deadline::after(timeout), stream);
}

std::optional<Message> Queue::try_get_at_once(Stream stream) {
  auto message = channel_->receiver().get_at_once(channel_->session(kNow), stream);
  channel_->note_change();
  if (message) log_got(*channel_, *message);
  return message;
}

Tensor Queue::get_tensor(Stream stream) { return *get_tensor_from(*channel_, kForever, stream); }

std::optional<Tensor> Queue::try_get_tensor(std::chrono::nanoseconds timeout, Stream stream) {
  return get_tensor_from(*channel_, Deadline::after(timeout), stream);
}

std::uint64_t Queue::size() const { return channel_->ring().size(); }

std::uint64_t Queue::maxsize() const { return channel_->ring().max_items(); }

void Queue::close() {
  channel_->ring().close(Deadline::after(reply_timeout()));
  channel_->note_change();
}

int Queue::ready_fd() const { return channel_->ready_fd(); }

bool Queue::is_closed() const { return channel_->ring().is_closed(); }

}  // namespace onecopy
