// SPDX-License-Identifier: Apache-2.0
#include "support/queue_exchanges.h"

#include <array>
#include <functional>
#include <sstream>
#include <utility>
#include <vector>

#include "onecopy/channel/queue.h"
#include "onecopy/share/share.h"

namespace onecopy::bench {
namespace {

constexpr std::int64_t kUsual = 4096;
constexpr std::int64_t kLargeItem = std::int64_t{1} << 30;
constexpr std::size_t kTensorsOneWay = 64;

Tensor tensor_of(std::int64_t bytes) { return empty(Layout(DType::u8, {bytes})); }

/// Makes queues sleep instead of spin, as with more users than processors.
QueueOptions that_sleeps() {
  QueueOptions options;
  options.may_spin = false;
  return options;
}

/// The two queues, one for each direction.
struct Pair {
  Queue there;
  Queue back;
};

class RoundTrip final : public Exchange {
 public:
  using Make = std::function<Tensor()>;
  RoundTrip(Pair& pair, Make make) : pair_(pair), make_(std::move(make)) {}

  void lead(int count) override {
    for (int i = 0; i < count; ++i) {
      pair_.there.put(make_());
      pair_.back.get_tensor();
    }
  }
  void follow(int count) override {
    for (int i = 0; i < count; ++i) pair_.back.put(pair_.there.get_tensor());
  }

 private:
  Pair& pair_;
  Make make_;
};

class OneWay final : public Exchange {
 public:
  OneWay(Pair& pair, bool fresh) : pair_(pair), fresh_(fresh) {}

  void lead(int count) override {
    while (tensors_.size() < kTensorsOneWay) tensors_.push_back(tensor_of(kUsual));
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
      if (fresh_) pair_.there.put(tensor_of(kUsual));
      else pair_.there.put(tensors_[i % kTensorsOneWay]);
  }
  void follow(int count) override {
    for (int i = 0; i < count; ++i) pair_.there.get_tensor();
  }

 private:
  Pair& pair_;
  bool fresh_;
  std::vector<Tensor> tensors_;
};

/// Makes the tensor at the first use, and keeps it.
RoundTrip::Make same(std::int64_t bytes) {
  return [bytes, tensor = Tensor()]() mutable {
    if (!tensor) tensor = tensor_of(bytes);
    return tensor;
  };
}

RoundTrip::Make fresh() {
  return [] { return tensor_of(kUsual); };
}

Queue connect(std::istream& names) {
  std::string name;
  names >> name;
  return Queue::connect(Handle::from_text(name));
}

}  // namespace

struct QueueLink::State {
  Pair spinning;
  Pair sleeping;
};

QueueLink::QueueLink()
    : state_(new State{{Queue::create(), Queue::create()},
                       {Queue::create(that_sleeps()), Queue::create(that_sleeps())}}) {}

QueueLink::QueueLink(const std::string& names) {
  std::istringstream in(names);
  Queue a = connect(in);
  Queue b = connect(in);
  Queue c = connect(in);
  Queue d = connect(in);
  state_.reset(new State{{std::move(a), std::move(b)}, {std::move(c), std::move(d)}});
}

QueueLink::~QueueLink() = default;

std::string QueueLink::names() const {
  std::string names;
  for (const Queue* queue :
       {&state_->spinning.there, &state_->spinning.back, &state_->sleeping.there, &state_->sleeping.back})
    names += queue->handle().to_text() + "\n";
  return names;
}

void QueueLink::add_to(Exchanges& exchanges) {
  Pair& spinning = state_->spinning;
  Pair& sleeping = state_->sleeping;
  exchanges["queue"] = std::make_unique<RoundTrip>(spinning, same(kUsual));
  exchanges["queue fresh"] = std::make_unique<RoundTrip>(spinning, fresh());
  exchanges["queue 4 bytes"] = std::make_unique<RoundTrip>(spinning, same(4));
  exchanges["queue 1 GiB"] = std::make_unique<RoundTrip>(spinning, same(kLargeItem));
  exchanges["queue sleep"] = std::make_unique<RoundTrip>(sleeping, same(kUsual));
  exchanges["queue sleep fresh"] = std::make_unique<RoundTrip>(sleeping, fresh());
  exchanges["queue to"] = std::make_unique<OneWay>(spinning, false);
  exchanges["queue to fresh"] = std::make_unique<OneWay>(spinning, true);
}

}  // namespace onecopy::bench
