// SPDX-License-Identifier: Apache-2.0 `onecopy_bench_iceoryx peer leader|follower` is one of two processes that send
// each other chunks. Its parent, onecopy_bench, requests each measurement: "spin 1000", "sleep 1000" or "one way 1000".
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iceoryx_hoofs/log/logmanager.hpp>
#include <iceoryx_posh/popo/publisher.hpp>
#include <iceoryx_posh/popo/subscriber.hpp>
#include <iceoryx_posh/popo/wait_set.hpp>
#include <iceoryx_posh/runtime/posh_runtime.hpp>
#include <optional>
#include <string>

#include "support/cpu.h"
#include "support/peer.h"
#include "support/samples.h"

namespace onecopy::bench {
namespace {

constexpr int kWarm = 20;

/// A chunk as large as the tensor of the other exchanges. iceoryx does not initialise a loaned chunk.
struct Chunk {
  Chunk() noexcept {}  // NOLINT: empty on purpose
  std::uint64_t number;
  std::byte rest[4096 - sizeof(std::uint64_t)];
};

using Subscriber = iox::popo::Subscriber<Chunk>;

iox::popo::PublisherOptions blocking_publisher() {
  iox::popo::PublisherOptions options;
  options.subscriberTooSlowPolicy = iox::popo::ConsumerTooSlowPolicy::WAIT_FOR_CONSUMER;
  return options;
}

iox::popo::SubscriberOptions blocking_subscriber() {
  iox::popo::SubscriberOptions options;
  options.queueFullPolicy = iox::popo::QueueFullPolicy::BLOCK_PRODUCER;
  return options;
}

/// The two topics, one for each direction.
class Link {
 public:
  explicit Link(bool leads)
      : publisher_({"onecopy", "bench",
                    iox::capro::IdString_t(iox::cxx::TruncateToCapacity, leads ? "there" : "back")},
                   blocking_publisher()),
        subscriber_({"onecopy", "bench",
                     iox::capro::IdString_t(iox::cxx::TruncateToCapacity, leads ? "back" : "there")},
                    blocking_subscriber()) {}

  void wait_until_connected() {
    spin_until([&] {
      return publisher_.hasSubscribers() &&
             subscriber_.getSubscriptionState() == iox::SubscribeState::SUBSCRIBED;
    });
  }

  void set_sleeping(bool sleeping) {
    wait_set_.reset();
    if (!sleeping) return;
    wait_set_.emplace();
    wait_set_->attachState(subscriber_, iox::popo::SubscriberState::HAS_DATA).or_else([](auto) {
      throw std::runtime_error("iceoryx: cannot attach to a wait set");
    });
  }

  void send() {
    for (;;) {
      auto loan = publisher_.loan();
      if (loan.has_error()) continue;  // the consumer is behind, and no chunk is free
      loan.value()->number = ++sent_;
      loan.value().publish();
      return;
    }
  }
  void receive() {
    while (!try_receive())
      if (wait_set_) wait_set_->timedWait(iox::units::Duration::fromMilliseconds(100));
      else relax();
  }

 private:
  bool try_receive() {
    auto taken = subscriber_.take();
    if (taken.has_error()) return false;
    seen_ += taken.value()->number;
    return true;
  }

  iox::popo::Publisher<Chunk> publisher_;
  Subscriber subscriber_;
  std::optional<iox::popo::WaitSet<4>> wait_set_;
  std::uint64_t sent_ = 0;
  std::uint64_t seen_ = 0;
};

void round_trips(Link& link, bool leads, int count) {
  for (int i = 0; i < count; ++i) {
    if (leads) link.send();
    link.receive();
    if (!leads) link.send();
  }
}

void one_way(Link& link, bool leads, int count) {
  for (int i = 0; i < count; ++i)
    if (leads) link.send();
    else link.receive();
  if (leads) link.receive();  // it has arrived
  else link.send();
}

/// Returns the nanoseconds of an exchange.
double run_round(Link& link, bool leads, const std::string& message) {
  const std::size_t space = message.rfind(' ');
  const std::string kind = message.substr(0, space);
  const int count = std::atoi(message.c_str() + space);
  const Pin pin(leads ? 0 : 1);
  link.set_sleeping(kind == "sleep");
  const auto exchange = [&](int n) {
    kind == "one way" ? one_way(link, leads, n) : round_trips(link, leads, n);
  };
  exchange(kWarm);
  const double ns = time_ns([&] { exchange(count); });
  link.set_sleeping(false);
  return ns / count;
}

void serve(Parent& parent, bool leads) {
  iox::log::LogManager::GetLogManager().SetDefaultLogLevel(iox::log::LogLevel::kError);
  const auto name = fmt::format("onecopy-bench-{}", leads ? "leader" : "follower");
  iox::runtime::PoshRuntime::initRuntime(iox::RuntimeName_t(iox::cxx::TruncateToCapacity, name.c_str()));
  Link link(leads);
  link.wait_until_connected();
  parent.talk.say("connected");
  for (std::string message; parent.talk.try_hear(message);)
    parent.talk.say(fmt::format("{}", run_round(link, leads, message)));
}

}  // namespace
}  // namespace onecopy::bench

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("onecopy_bench starts this program itself\n", stderr);
    return 2;
  }
  try {
    onecopy::bench::Parent parent;
    onecopy::bench::serve(parent, std::string(argv[2]) == "leader");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "onecopy_bench_iceoryx: %s\n", e.what());
    return 1;
  }
}
