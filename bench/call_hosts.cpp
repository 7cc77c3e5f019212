// SPDX-License-Identifier: Apache-2.0
// Calls to a member on another host, beside a bare OpenSSL program and ucx_perftest over the same cable in the same run. The
// hosts are two network namespaces, with one processor each.
#include <fmt/format.h>
#include <signal.h>

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "onecopy/core/error.h"
#include "rows.h"
#include "support/samples.h"
#include "support/two_networks.h"
#include "transport/fabric.h"

namespace onecopy::bench {
namespace {

using namespace std::chrono_literals;
using onecopy::testing::TwoNetworks;

constexpr int kHostRounds = 9;
constexpr double kUs = 1e3, kMs = 1e6, kMiB = 1 << 20;

/// A caller and a callee in two connected network namespaces.
class TwoMembers {
 public:
  explicit TwoMembers(const std::string& fabric, const char* peer_timeout = "30") : fabric_(fabric) {
    ::setenv("ONECOPY_RPC_KEY", "a secret of these benchmarks, of 40 bytes", 1);
    ::setenv("ONECOPY_RPC_FABRIC", fabric.c_str(), 1);
    ::setenv("ONECOPY_RPC_PEER_TIMEOUT", peer_timeout, 1);
    caller_.emplace("call_a_host");
    callee_.emplace("answer_calls_of_a_host");
    for (const char* const name : {"ONECOPY_RPC_KEY", "ONECOPY_RPC_FABRIC", "ONECOPY_RPC_PEER_TIMEOUT"})
      ::unsetenv(name);
    caller_->hear();
    callee_->hear();
    networks_.emplace(caller_->pid(), callee_->pid(), TwoNetworks::Cable::fast);
    callee_->say("go");
    caller_->say("go");
    address_ = callee_->hear();
    caller_->ask(address_);
  }

  double ask(const std::string& what, std::int64_t number = 0) {
    return std::stod(caller_->ask(fmt::format("{} {}", what, number)));
  }
  /// Measures the raw limit: a bare OpenSSL program, or ucx_perftest.
  double ask_raw(const std::string& what, std::int64_t number = 0) {
    if (fabric_ == "ucx") callee_->ask("perftest");
    return ask(fmt::format("{}-{}", fabric_ == "ucx" ? "perftest" : "bare", what), number);
  }
  Peer& caller() { return *caller_; }
  Peer& callee() { return *callee_; }
  TwoNetworks& networks() { return *networks_; }
  const std::string& address() const { return address_; }

 private:
  const std::string fabric_;
  std::optional<Peer> callee_, caller_;  // the caller ends first: its calls need the callee
  std::optional<TwoNetworks> networks_;
  std::string address_;
};

void measure_tensors(Row& row, const Effort& effort, const std::string& raw, double least,
                     std::int64_t bytes, TwoMembers& members) {
  Samples limit, ours;
  for (int i = 0; i < effort.rounds(kHostRounds); ++i) {
    limit.add(members.ask_raw("tensors", bytes));
    ours.add(members.ask("tensors", bytes));
  }
  const std::string size = fmt::format("{} MiB", bytes >> 20);
  const double ratio = ours.ratio_to(limit);
  row.add(fmt::format("{}, {}", raw, size), limit.median() / 1e9, "GB/s");
  row.add("call_async(), " + size, ours.median() / 1e9, "GB/s");
  row.judge(fmt::format("beside {}, {}", raw, size), ratio, "x", at_least(ratio, least));
}

void measure_small_calls(Row& row, const Effort& effort, const std::string& raw, TwoMembers& members) {
  constexpr double kMaxMoreUs = 15;
  Samples limit, ours, rate, beside;
  for (int i = 0; i < effort.rounds(kHostRounds); ++i) {
    limit.add(members.ask_raw("small") / kUs);
    ours.add(members.ask("small") / kUs);
    rate.add(members.ask("empty", 100'000));
    beside.add(members.ask("beside") / kMs);
  }
  row.add("a round trip of " + raw, limit.median(), "us");
  row.add("an empty call", ours.median(), "us");
  const double more = ours.median() - limit.median();
  row.judge("more than the round trip", more, "us", at_most(more, kMaxMoreUs));
  row.judge("empty calls, 1000 under way", rate.median(), "/s", at_least(rate.median(), 100'000));
  row.judge("the longest small call beside two senders of 1 GiB", beside.median(), "ms",
            at_most(beside.median(), 50));
}

/// Measures what both transports promise, in turns with the raw limit.
void measure_speed(Row& row, const Effort& effort, const std::string& raw, double least,
                   TwoMembers& members) {
  for (const std::int64_t mib : {1, 16}) measure_tensors(row, effort, raw, least, mib << 20, members);
  measure_small_calls(row, effort, raw, members);
  const double memory = members.ask("memory");
  row.judge("peak memory of a sender of 1 GiB", memory, "GiB", at_most(memory, 1.1));
}

void measure_strangers(Row& row, const Effort& effort, TwoMembers& members) {
  constexpr std::int64_t kCalls = 300'000;
  Peer strangers("attack_a_host");
  strangers.say(members.address());
  strangers.say(std::to_string(members.caller().pid()));
  Samples alone, beside;
  const double before = std::stod(members.callee().ask("memory"));
  double memory = before;
  for (int i = 0; i < effort.rounds(kHostRounds); ++i) {
    alone.add(members.ask("empty", kCalls));
    strangers.ask("begin");
    beside.add(members.ask("empty", kCalls));
    memory = std::max(memory, std::stod(members.callee().ask("memory")));
    strangers.ask("end");
  }
  row.add("empty calls, alone", alone.median(), "/s");
  row.add("empty calls, beside 500 silent strangers, a port scanner and wrong keys", beside.median(), "/s");
  const double ratio = beside.ratio_to(alone);
  row.judge("of the rate alone", ratio, "x", at_least(ratio, 0.95));
  row.judge("memory for strangers", (memory - before) / kMiB, "MiB", at_most((memory - before) / kMiB, 64));
}

/// Returns the milliseconds after which the caller notices what `happen` does.
double notice_ms(TwoMembers& members, const std::function<void()>& happen) {
  members.ask("small");
  members.caller().say("until-ended 0");
  std::this_thread::sleep_for(200ms);  // the call is under way
  const auto begin = static_cast<double>(Clock::now().time_since_epoch().count());
  happen();
  return (members.caller().hear_number() - begin) / kMs;
}

void measure_cuts(Row& row, const Effort& effort, const char* fabric) {
  Samples killed, cut;
  for (int i = 0; i < effort.rounds(kHostRounds); ++i) {
    TwoMembers first(fabric), second(fabric, "2");
    killed.add(notice_ms(first, [&] { ::kill(first.callee().pid(), SIGKILL); }));
    cut.add(notice_ms(second, [&] { second.networks().cut(); }));
  }
  row.judge(fmt::format("a killed member is noticed after, {}", fabric), killed.quantile(1), "ms",
            at_most(killed.quantile(1), 100));
  row.judge(fmt::format("a cut cable is noticed after, peer_timeout 2 s, {}", fabric), cut.quantile(1),
            "ms", at_most(cut.quantile(1), 3000));
  TwoMembers members(fabric);
  members.caller().say("lost 13");
  std::this_thread::sleep_for(1s);
  members.networks().cut();
  std::this_thread::sleep_for(10s);
  members.networks().mend();
  const double lost = members.caller().hear_number();
  row.judge(fmt::format("calls lost in a cut of 10 s, {}", fabric), lost, "calls", at_most(lost, 0));
}

bool has_ucx(Row& row) {
  try {
    transport::require_fabric("ucx");
    return true;
  } catch (const Error& error) {
    row.note(fmt::format("not measured over UCX: {}", error.what()));
    return false;
  }
}

bool has_networks(Row& row) {
  const std::string why = TwoNetworks::obstacle();
  if (!why.empty()) row.note("not measured: " + why);
  return why.empty();
}

}  // namespace

Row call_hosts(const Effort& effort) {
  Row row("Calls to a member on another host (C++, TLS, two network namespaces)",
          "tensors from 1 MiB on: at least 0.8 of a bare OpenSSL program; an empty call: its round trip "
          "and 15 us; 100,000 empty calls a second in flight; a small call beside two senders of 1 GiB: "
          "50 ms; a sender's memory: 1.1 of its tensor; strangers take at most 5 % of the rate");
  if (!has_networks(row)) return row;
  TwoMembers members("tls");
  measure_speed(row, effort, "a bare OpenSSL program", 0.8, members);
  measure_strangers(row, effort, members);
  return row;
}

Row call_hosts_over_ucx(const Effort& effort) {
  Row row("Calls to a member on another host (C++, UCX over TCP, two network namespaces)",
          "tensors from 1 MiB on: at least 0.9 of ucx_perftest; the rest as over TLS");
  if (!has_networks(row) || !has_ucx(row)) return row;
  TwoMembers members("ucx");
  measure_speed(row, effort, "ucx_perftest", 0.9, members);
  return row;
}

Row cut_off_hosts(const Effort& effort) {
  Row row(
      "Members on other hosts that are killed or cut off",
      "a kill is noticed within 100 ms, a cut within peer_timeout and 1 s; a cut of 10 s loses nothing");
  if (!has_networks(row)) return row;
  measure_cuts(row, effort, "tls");
  if (has_ucx(row)) measure_cuts(row, effort, "ucx");
  return row;
}

}  // namespace onecopy::bench
