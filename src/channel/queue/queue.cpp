// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/queue.h"

#include "channel/queue/channel.h"
#include "os/deadline_scope.h"

namespace onecopy {
namespace {

Deadline as_deadline(std::chrono::nanoseconds timeout) {
  return timeout <= std::chrono::nanoseconds{0} ? kNow : Deadline::after(timeout);
}

template <class Item>
bool put_into(Channel& channel, Item&& item, Deadline deadline, Stream stream) {
  const bool put =
      channel.sender().put(channel.session(deadline), std::forward<Item>(item), deadline, stream);
  channel.note_change();
  return put;
}

std::optional<Message> get_from(Channel& channel, Deadline deadline, Stream stream) {
  auto message = channel.receiver().get(channel.session(deadline), deadline, stream);
  channel.note_change();
  return message;
}

std::optional<Tensor> get_tensor_from(Channel& channel, Deadline deadline, Stream stream) {
  auto tensor = channel.receiver().get_tensor(channel.session(deadline), deadline, stream);
  channel.note_change();
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
  return put_into(*channel_, tensor, as_deadline(timeout), stream);
}

bool Queue::try_put(const Message& message, std::chrono::nanoseconds timeout, Stream stream) {
  return put_into(*channel_, message, as_deadline(timeout), stream);
}

bool Queue::try_put(Tensor&& tensor, std::chrono::nanoseconds timeout, Stream stream) {
  return put_into(*channel_, std::move(tensor), as_deadline(timeout), stream);
}

bool Queue::try_put_at_once(const Message& message, Stream stream) {
  Session* const session = channel_->joined_session();
  if (!session || !channel_->sender().put_at_once(*session, message, stream)) return false;
  channel_->note_change();
  return true;
}

void Queue::prepare_put(const Message& message, std::chrono::nanoseconds timeout) {
  const Deadline deadline = as_deadline(timeout);
  channel_->sender().prepare(channel_->session(deadline), message, deadline);
}

bool Queue::wait_for_space(std::chrono::nanoseconds timeout) const {
  return channel_->ring().wait_to_put(as_deadline(timeout));
}

Message Queue::get(Stream stream) { return *get_from(*channel_, kForever, stream); }

std::optional<Message> Queue::try_get(std::chrono::nanoseconds timeout, Stream stream) {
  return get_from(*channel_, as_deadline(timeout), stream);
}

std::optional<Message> Queue::try_get_at_once(Stream stream) {
  auto message = channel_->receiver().get_at_once(channel_->session(kNow), stream);
  if (message) channel_->note_change();
  return message;
}

Tensor Queue::get_tensor(Stream stream) { return *get_tensor_from(*channel_, kForever, stream); }

std::optional<Tensor> Queue::try_get_tensor(std::chrono::nanoseconds timeout, Stream stream) {
  return get_tensor_from(*channel_, as_deadline(timeout), stream);
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
