// SPDX-License-Identifier: Apache-2.0 Calls to a member on another host, beside a bare OpenSSL program over the same
// cable in the same run. The hosts are two network namespaces, with one processor each.
#include <fmt/format.h>

#include <cstdlib>
#include <deque>
#include <optional>
#include <sstream>
#include <string>

#include "onecopy/rpc/agent.h"
#include "onecopy/share/share.h"
#include "rows.h"
#include "support/bare_tls.h"
#include "support/cpu.h"
#include "support/hex.h"
#include "support/samples.h"
#include "support/two_networks.h"

namespace onecopy::bench {
namespace {

using onecopy::testing::TwoNetworks;

constexpr int kHostRounds = 9;
constexpr std::int64_t kBytesOfARound = std::int64_t{1} << 30;
constexpr std::size_t kTensorsUnderWay = 8, kCallsUnderWay = 1000;
constexpr std::int64_t kRoundTrips = 2000, kEmptyCalls = 100'000;

/// A process that has entered its own network namespace.
class Host {
 public:
  explicit Host(const std::string& role) : peer_(role) { peer_.hear(); }
  Peer& peer() { return peer_; }

 private:
  Peer peer_;
};

/// Begins `count` calls, with a maximum number of pending calls, and waits for all.
template <class Begin>
void keep_under_way(std::size_t most, std::int64_t count, Begin&& begin) {
  std::deque<rpc::Future> under_way;
  for (std::int64_t i = 0; i < count; ++i) {
    if (under_way.size() == most) under_way.front().get(), under_way.pop_front();
    under_way.push_back(begin());
  }
  for (rpc::Future& future : under_way) future.get();
}

/// The caller's measurements, by the word that requests each. Rates are per second, times in nanoseconds.
class Caller {
 public:
  Caller(rpc::Agent& agent, BareTls& bare) : agent_(agent), bare_(bare) {}

  double measure(const std::string& what, std::int64_t bytes) {
    if (what == "bare-tensors")
      return rate_of([&] { bare_.send(bytes, kBytesOfARound / bytes); }, kBytesOfARound);
    if (what == "tensors") return tensors(bytes);
    if (what == "bare-small") return per_trip([&] { bare_.send(0, 0); });
    if (what == "small") return per_trip([&] { agent_.call("callee", "take"); });
    const auto begin = [&] { return agent_.call_async("callee", "take"); };
    return rate_of([&] { keep_under_way(kCallsUnderWay, kEmptyCalls, begin); }, kEmptyCalls);
  }

 private:
  double tensors(std::int64_t bytes) {
    const Tensor tensor = empty(Layout(DType::u8, {bytes}));
    const auto begin = [&] { return agent_.call_async("callee", "take", {{}, {tensor}}); };
    keep_under_way(kTensorsUnderWay, 10, begin);
    return rate_of([&] { keep_under_way(kTensorsUnderWay, kBytesOfARound / bytes, begin); },
                   kBytesOfARound);
  }
  template <class F>
  static double rate_of(F&& f, std::int64_t units) {
    return static_cast<double>(units) * 1e9 / time_ns(f);
  }
  template <class F>
  static double per_trip(F&& f) {
    const auto all = [&] {
      for (std::int64_t i = 0; i < kRoundTrips; ++i) f();
    };
    return time_ns(all) / static_cast<double>(kRoundTrips);
  }

  rpc::Agent& agent_;
  BareTls& bare_;
};

}  // namespace

/// Answers calls in its own network namespace until the end.
void answer_calls_of_a_host(Parent& parent) {
  onecopy::testing::enter_network();
  parent.talk.say("entered");
  parent.talk.hear();
  const Pin pin(1);
  BareTlsServer bare;
  rpc::Agent agent({.name = "callee", .number = 1});
  agent.define("take", [](rpc::Values&&) { return rpc::Values{}; });
  parent.talk.say(to_hex(agent.address()));
  for (std::string message; parent.talk.try_hear(message);) continue;
}

/// Receives the callee's address, and then the names of measurements with the size of a tensor.
void call_a_host(Parent& parent) {
  onecopy::testing::enter_network();
  parent.talk.say("entered");
  parent.talk.hear();
  const Pin pin(0);
  rpc::Agent agent({.name = "caller", .number = 0});
  agent.join(from_hex(parent.talk.hear()));
  HostPort there = HostPort::parse(fmt::format("{}:{}", TwoNetworks::kAddresses[1], BareTlsServer::kPort));
  BareTls bare(StreamSocket::connect(there, std::chrono::seconds(10)), rpc::Side::client);
  Caller caller(agent, bare);
  parent.talk.say("joined");
  for (std::string message; parent.talk.try_hear(message);) {
    std::istringstream words(message);
    std::string what;
    std::int64_t bytes = 0;
    words >> what >> bytes;
    parent.talk.say(std::to_string(caller.measure(what, bytes)));
  }
}

namespace {

void add_tensors(Row& row, Host& caller, const Effort& effort, std::int64_t bytes) {
  Samples bare, ours;
  for (int i = 0; i < effort.rounds(kHostRounds); ++i) {
    bare.add(std::stod(caller.peer().ask(fmt::format("bare-tensors {}", bytes))));
    ours.add(std::stod(caller.peer().ask(fmt::format("tensors {}", bytes))));
  }
  const std::string size = fmt::format("{} MiB", bytes >> 20);
  row.add("a bare OpenSSL program, " + size, bare.median() / 1e9, "GB/s");
  const double ratio = ours.ratio_to(bare);
  row.add("call_async(), " + size, ours.median() / 1e9, "GB/s", ratio, "the bare program");
  row.judge("beside the bare program, " + size, ratio, "", at_least(ratio, 0.8));
}

void add_small_calls(Row& row, Host& caller, const Effort& effort) {
  constexpr double kMaxMoreUs = 15, kMinRate = 100'000;
  Samples bare, ours, rate;
  for (int i = 0; i < effort.rounds(kHostRounds); ++i) {
    bare.add(std::stod(caller.peer().ask("bare-small")) / 1e3);
    ours.add(std::stod(caller.peer().ask("small")) / 1e3);
    rate.add(std::stod(caller.peer().ask("empty")));
  }
  row.add("a bare round trip", bare.median(), "us");
  row.add("an empty call", ours.median(), "us");
  const double more = ours.median() - bare.median();
  row.judge("more than the bare round trip", more, "us", at_most(more, kMaxMoreUs));
  row.add(fmt::format("empty calls, {} under way", kCallsUnderWay), rate.median(), "/s");
  row.judge("empty calls in flight", rate.median(), "/s", at_least(rate.median(), kMinRate));
}

}  // namespace

Row call_hosts(const Effort& effort) {
  Row row("Calls to a member on another host (C++, TLS, two network namespaces)",
          "tensors from 1 MiB on: at least 0.8 of a bare OpenSSL program; an empty call: its round trip "
          "and 15 us; "
          "100,000 empty calls a second in flight");
  if (const std::string why = TwoNetworks::obstacle(); !why.empty())
    return row.note("not measured: " + why), row;
  ::setenv("ONECOPY_RPC_KEY", "a secret of these benchmarks, of 40 bytes", 1);
  Host caller("call_a_host"), callee("answer_calls_of_a_host");
  const TwoNetworks networks(caller.peer().pid(), callee.peer().pid(), TwoNetworks::Cable::fast);
  callee.peer().say("go");
  caller.peer().say("go");
  caller.peer().ask(callee.peer().hear());
  for (const std::int64_t bytes : {std::int64_t{1} << 20, std::int64_t{16} << 20})
    add_tensors(row, caller, effort, bytes);
  add_small_calls(row, caller, effort);
  ::unsetenv("ONECOPY_RPC_KEY");
  return row;
}

}  // namespace onecopy::bench
