// SPDX-License-Identifier: Apache-2.0
// Measures calls of a function of another process, against the raw cost of talking to the process.
#include <fmt/format.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "hand_over.h"
#include "onecopy/rpc/agent.h"
#include "rows.h"
#include "support/cpu.h"
#include "support/hex.h"
#include "support/samples.h"

namespace onecopy::bench {
namespace {

constexpr int kCallRounds = 101;
constexpr std::chrono::milliseconds kSpins{1};
constexpr std::chrono::nanoseconds kSleeps{0};

/// A process on another processor, and the connection by which this process calls its functions.
class Callee {
 public:
  explicit Callee(std::chrono::nanoseconds spin)
      : peer_("answer_calls"), agent_({.name = "caller", .number = 0, .spin = spin}) {
    agent_.join(from_hex(peer_.ask(std::to_string(spin.count()))));
    agent_.call("callee", "nothing");
  }

  /// Returns the nanoseconds of each call.
  double round(int count) {
    const Pin pin(0);
    for (int i = 0; i < 20; ++i) agent_.call("callee", "nothing");
    return time_ns([&] {
             for (int i = 0; i < count; ++i) agent_.call("callee", "nothing");
           }) /
           count;
  }

  /// Begins all calls before it waits for the first.
  double pipelined(int count) {
    std::vector<rpc::Future> futures;
    futures.reserve(static_cast<std::size_t>(count));
    const Pin pin(0);
    return time_ns([&] {
             for (int i = 0; i < count; ++i) futures.push_back(agent_.call_async("callee", "nothing"));
             for (rpc::Future& future : futures) future.get();
           }) /
           count;
  }

 private:
  Peer peer_;
  rpc::Agent agent_;
};

}  // namespace

/// Receives the time to spin, sends its address, and answers calls until the end.
void answer_calls(Parent& parent) {
  const std::chrono::nanoseconds spin(std::stoll(parent.talk.hear()));
  const Pin pin(1);  // its threads inherit the processor from this thread
  rpc::Agent agent({.name = "callee", .number = 1, .spin = spin});
  agent.define("nothing", [](rpc::Values&&) { return rpc::Values{}; });
  parent.talk.say(to_hex(agent.address()));
  for (std::string message; parent.talk.try_hear(message);) continue;
}

Row call_spinning(const Effort& effort) {
  Row row("Call an empty function of another process (C++), both spinning",
          "within 6 x the raw shared-memory ping-pong; 1.5 million a second with many under way");
  HandOver link;
  Callee callee(kSpins);
  Samples raw, call, pipelined;
  for (int i = 0; i < effort.rounds(kCallRounds); ++i) {
    raw.add(link.round("spin", 2000));
    call.add(callee.round(500));
    pipelined.add(1e9 / callee.pipelined(2000));
  }
  row.add("two words in shared memory", raw.median(), "ns");
  row.judge("call()", call.median(), "ns", call.ratio_to(raw), "raw", 6);
  row.judge("call_async() x 2000, then get()", pipelined.median(), "/s",
            at_least(pipelined.median(), 1.5e6));
  return row;
}

Row call_asleep(const Effort& effort) {
  Row row("Call an empty function of another process (C++), both sleeping",
          "within 1.15 x the raw futex round trip + 1 µs");
  HandOver link;
  Callee callee(kSleeps);
  Samples raw, call;
  for (int i = 0; i < effort.rounds(kCallRounds); ++i) {
    raw.add(link.round("futex", 100));
    call.add(callee.round(100));
  }
  row.add("raw futex", raw.median(), "ns");
  row.judge("call()", call.median(), "ns", at_most(call.median(), 1.15 * raw.median() + 1000));
  row.add("call(), beside the futex", call.median(), "ns", call.ratio_to(raw), "futex");
  return row;
}

}  // namespace onecopy::bench
