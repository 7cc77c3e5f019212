// SPDX-License-Identifier: Apache-2.0
// Measures a tensor sent to another process and back.
#include "hand_over.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "rows.h"
#include "support/cpu.h"
#include "support/samples.h"

namespace onecopy::bench {
namespace {

constexpr int kHandOverRounds = 101;
/// A new tensor needs one more cache line, which weighs more if a raw round trip is faster than this.
constexpr double kFastRaw = 120;  // ns
double most_of_fresh(double raw) { return raw < kFastRaw ? 5.5 : 5; }

/// Runs the exchanges in another order in each round, since the time in which two sleeping processes wake each other
/// varies by a quarter with the preceding exchange.
void measure_in_turns(int rounds, std::vector<std::function<void()>> contenders) {
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same orders in every run
  for (int i = 0; i < rounds; ++i) {
    std::shuffle(contenders.begin(), contenders.end(), random);
    for (const auto& measure : contenders) measure();
  }
}

}  // namespace

HandOver::HandOver() : peer_("follow_exchanges"), exchanges_(raw_exchanges(peer_.raw())) {
  queues_.add_to(exchanges_);
  peer_.ask(queues_.names());
}

double HandOver::round(const std::string& name, int count) {
  const Pin pin(0);
  return lead_round(*exchanges_.at(name), name, peer_, count);
}

/// Receives the names of the queues, then follows.
void follow_exchanges(Parent& parent) {
  Exchanges exchanges = raw_exchanges(parent.raw);
  QueueLink queues(parent.talk.hear());
  queues.add_to(exchanges);
  parent.talk.say("ready");
  const Pin pin(1);
  for (std::string message; parent.talk.try_hear(message);) follow_round(exchanges, parent, message);
}

Row hand_over_spinning(const Effort& effort, Iceoryx& iceoryx) {
  Row row("Hand over a tensor through Queue and back, both spinning",
          "within 5 x the raw shared-memory ping-pong; a fresh one within 5.5 x where that takes less than "
          "0.12 µs");
  HandOver link;
  Samples raw, same, fresh, descriptors, other;
  std::vector<std::function<void()>> contenders = {[&] { raw.add(link.round("spin", 2000)); },
                                                   [&] { same.add(link.round("queue", 1000)); },
                                                   [&] { fresh.add(link.round("queue fresh", 1000)); },
                                                   [&] { descriptors.add(link.round("unix spin", 50)); }};
  if (iceoryx.present()) contenders.emplace_back([&] { other.add(iceoryx.round("spin", 500)); });
  measure_in_turns(effort.rounds(kHandOverRounds), std::move(contenders));
  row.add("two words in shared memory", raw.median(), "ns");
  row.judge("Queue, the same tensor", same.median(), "ns", same.ratio_to(raw), "raw", 5);
  row.judge("Queue, a fresh tensor each time", fresh.median(), "ns", fresh.ratio_to(raw), "raw",
            most_of_fresh(raw.median()));
  row.add("Unix socket, a descriptor per tensor", descriptors.median(), "ns", descriptors.ratio_to(raw),
          "raw");
  if (iceoryx.present()) row.add(Iceoryx::kName, other.median(), "ns", other.ratio_to(raw), "raw");
  else row.note(iceoryx.why_absent());
  return row;
}

Row hand_over_blocking(const Effort& effort, Iceoryx& iceoryx) {
  Row row("Hand over a tensor through Queue and back, both sleeping",
          "within 1.3 x the raw futex round trip, and 1.1 x a byte through a pipe");
  HandOver link;
  Samples raw, pipe, same, fresh, descriptors, other;
  std::vector<std::function<void()>> contenders = {
      [&] { raw.add(link.round("futex", 100)); }, [&] { same.add(link.round("queue sleep", 100)); },
      [&] { pipe.add(link.round("pipe", 100)); }, [&] { fresh.add(link.round("queue sleep fresh", 100)); },
      [&] { descriptors.add(link.round("unix", 50)); }};
  if (iceoryx.present()) contenders.emplace_back([&] { other.add(iceoryx.round("sleep", 50)); });
  measure_in_turns(effort.rounds(kHandOverRounds), std::move(contenders));
  row.add("raw futex", raw.median(), "ns");
  row.add("byte through a pipe", pipe.median(), "ns", pipe.ratio_to(raw), "futex");
  row.judge("Queue, the same tensor", same.median(), "ns", same.ratio_to(raw), "futex", 1.3);
  row.judge("Queue, the same tensor, beside the pipe", same.median(), "ns", same.ratio_to(pipe), "pipe",
            1.1);
  row.judge("Queue, a fresh tensor each time", fresh.median(), "ns", fresh.ratio_to(raw), "futex", 1.3);
  row.add("Unix socket, a descriptor per tensor", descriptors.median(), "ns", descriptors.ratio_to(raw),
          "futex");
  if (iceoryx.present()) row.add(Iceoryx::kName, other.median(), "ns", other.ratio_to(raw), "futex");
  else row.note(iceoryx.why_absent());
  return row;
}

Row send_one_way(const Effort& effort, Iceoryx& iceoryx) {
  Row row("Small tensors one way, one producer and one consumer", "3 million a second");
  HandOver link;
  Samples raw, same, fresh, pipe, descriptors, other;
  for (int i = 0; i < effort.rounds(kHandOverRounds); ++i) {
    raw.add(1e9 / link.round("ring to", 20000));
    same.add(1e9 / link.round("queue to", 10000));
    fresh.add(1e9 / link.round("queue to fresh", 10000));
    pipe.add(1e9 / link.round("pipe to", 2000));
    descriptors.add(1e9 / link.round("unix to", 200));
    if (iceoryx.present()) other.add(1e9 / iceoryx.round("one way", 2000));
  }
  row.add("eight bytes through a raw ring", raw.median(), "/s");
  row.judge("Queue, tensors that exist", same.median(), "/s", at_least(same.median(), 3e6));
  row.add("Queue, a fresh tensor each time", fresh.median(), "/s");
  row.add("128 bytes through a pipe", pipe.median(), "/s");
  row.add("Unix socket, a descriptor per tensor", descriptors.median(), "/s");
  if (iceoryx.present()) row.add(Iceoryx::kName, other.median(), "/s");
  else row.note(iceoryx.why_absent());
  return row;
}

Row hand_over_large(const Effort& effort) {
  Row row("Hand over a tensor of 1 GiB", "within 10 % of one of 4 bytes");
  HandOver link;
  Samples small, large;
  for (int i = 0; i < effort.rounds(kHandOverRounds); ++i) {
    small.add(link.round("queue 4 bytes", 1000));
    large.add(link.round("queue 1 GiB", 1000));
  }
  row.add("4 bytes, there and back", small.median(), "ns");
  row.judge("1 GiB, there and back", large.median(), "ns", large.ratio_to(small), "4 bytes", 1.1);
  return row;
}

}  // namespace onecopy::bench
