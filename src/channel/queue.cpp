// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/queue.h"

#include "channel/channel.h"

namespace onecopy {
namespace {

TimePoint until(std::chrono::nanoseconds timeout) {
  return timeout <= std::chrono::nanoseconds{0} ? kNow : deadline_after(timeout);
}

template <class Item>
bool put_into(Channel& channel, const Item& item, TimePoint deadline) {
  return channel.sender().put(channel.process(), item, deadline);
}

}  // namespace

Queue Queue::create(const QueueOptions& options) { return Queue(Channel::create(options.maxsize)); }

Queue Queue::connect(const Handle& handle) { return Queue(Channel::connect(handle)); }

Queue::~Queue() {
  if (channel_) channel_->leave();
}

Handle Queue::handle() const { return channel_->handle(); }

void Queue::put(const Tensor& tensor) { put_into(*channel_, tensor, kForever); }

void Queue::put(const Message& message) { put_into(*channel_, message, kForever); }

bool Queue::try_put(const Tensor& tensor, std::chrono::nanoseconds timeout) {
  return put_into(*channel_, tensor, until(timeout));
}

bool Queue::try_put(const Message& message, std::chrono::nanoseconds timeout) {
  return put_into(*channel_, message, until(timeout));
}

Message Queue::get() { return *channel_->receiver().get(channel_->process(), kForever); }

std::optional<Message> Queue::try_get(std::chrono::nanoseconds timeout) {
  return channel_->receiver().get(channel_->process(), until(timeout));
}

Tensor Queue::get_tensor() { return *channel_->receiver().get_tensor(channel_->process(), kForever); }

std::optional<Tensor> Queue::try_get_tensor(std::chrono::nanoseconds timeout) {
  return channel_->receiver().get_tensor(channel_->process(), until(timeout));
}

std::uint64_t Queue::size() const { return channel_->ring().size(); }

std::uint64_t Queue::maxsize() const { return channel_->ring().max_items(); }

void Queue::close() { channel_->ring().close(); }

bool Queue::is_closed() const { return channel_->ring().is_closed(); }

}  // namespace onecopy
