// SPDX-License-Identifier: Apache-2.0
// Measures the cost of waiting for an empty queue.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "onecopy/channel/queue.h"
#include "onecopy/share/share.h"
#include "os/process.h"
#include "rows.h"
#include "support/cpu.h"

namespace onecopy::bench {
namespace {

/// Returns the processor time, in milliseconds, of the busiest of `users` processes that each wait for one item.
double cpu_of_waiting(int users, std::chrono::seconds how_long) {
  Queue queue = Queue::create();
  std::vector<std::unique_ptr<Peer>> waiters;
  for (int i = 0; i < users; ++i) {
    waiters.push_back(std::make_unique<Peer>("wait_for_items"));
    waiters.back()->ask(queue.handle().to_text());
  }
  for (const auto& waiter : waiters) waiter->say("1");
  std::this_thread::sleep_for(how_long);
  const Tensor tensor = empty(Layout(DType::u8, {64}));
  for (int i = 0; i < users; ++i) queue.put(tensor);
  double most = 0;
  for (const auto& waiter : waiters) most = std::max(most, waiter->hear_number());
  return most;
}

/// Returns the processor time per item, in nanoseconds, of `users` processes that share one item per millisecond.
double cpu_of_taking(int users, int items_each) {
  Queue queue = Queue::create();
  std::vector<std::unique_ptr<Peer>> takers;
  for (int i = 0; i < users; ++i) {
    takers.push_back(std::make_unique<Peer>("wait_for_items"));
    takers.back()->ask(queue.handle().to_text());
  }
  for (const auto& taker : takers) taker->say(std::to_string(items_each));
  const Tensor tensor = empty(Layout(DType::u8, {64}));
  for (int i = 0; i < users * items_each; ++i) {
    queue.put(tensor);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  double sum = 0;
  for (const auto& taker : takers) sum += taker->hear_number();
  return sum * 1e6 / (users * items_each);
}

}  // namespace

/// Receives a queue, then a number of items to take from it; answers with the processor time.
void wait_for_items(Parent& parent) {
  Queue queue = Queue::connect(Handle::from_text(parent.talk.hear()));
  parent.talk.say("ready");
  for (std::string message; parent.talk.try_hear(message);) {
    const double before = cpu_time_ms();
    for (int left = std::atoi(message.c_str()); left > 0; --left) queue.get_tensor();
    parent.talk.say(fmt::format("{}", cpu_time_ms() - before));
  }
}

Row wait_idle(const Effort& effort) {
  Row row("Wait in a queue",
          "a get blocked for 10 s takes at most 10 ms of processor time; with more users than "
          "processors nobody spins");
  const std::chrono::seconds how_long(effort.quick ? 2 : 10);
  const int crowd = 2 * usable_cpus();
  const double alone = cpu_of_waiting(1, how_long);
  const double many = cpu_of_waiting(crowd, how_long);
  const double taking = cpu_of_taking(crowd, effort.rounds(500));
  row.judge(fmt::format("get() blocked for {} s, processor time", how_long.count()), alone * 1e6, "ns",
            at_most(alone * 1e6, 10e6));
  row.judge(fmt::format("the busiest of {} processes blocked for {} s", crowd, how_long.count()),
            many * 1e6, "ns", at_most(many * 1e6, 10e6));
  row.add(fmt::format("{} processes, an item a millisecond: processor time an item", crowd), taking, "ns");
  return row;
}

}  // namespace onecopy::bench
