// SPDX-License-Identifier: Apache-2.0
// Tensors to a member on another host, beside UCX's own measurement of that way in the same run. The hosts are two
// network namespaces with a cable between them.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>

#include "onecopy/rpc/agent.h"
#include "onecopy/share/share.h"
#include "rows.h"
#include "support/cpu.h"
#include "support/hex.h"
#include "support/samples.h"
#include "support/two_networks.h"

namespace onecopy::bench {
namespace {

using onecopy::testing::TwoNetworks;

constexpr int kFarRounds = 9;
constexpr std::int64_t kBytesOfARound = std::int64_t{1} << 30;
constexpr std::size_t kUnderWay = 8;

/// A process in a network of its own that has entered it.
class Host {
 public:
  explicit Host(const std::string& role) : peer_(role) { peer_.hear(); }
  Peer& peer() { return peer_; }
  /// Of a shell. UCX looks for its device in /sys, which is the one of a network that was there when it was mounted.
  std::string command(int cpu, const std::string& what) const {
    return fmt::format(
        "nsenter -t {} -n unshare -m sh -c 'mount -t sysfs sys /sys && UCX_TLS=tcp UCX_NET_DEVICES=ocpy{} "
        "exec timeout "
        "5 taskset -c {} ucx_perftest {}'",
        peer_.pid(), cpu, cpu, what);
  }

 private:
  Peer peer_;
};

/// Of as many messages as make a round, in MB/s; 0 when ucx_perftest is not there.
double ucx_rate(const Host& from, const Host& to, std::int64_t bytes) {
  const std::string server = to.command(1, ">/dev/null 2>&1") + " &";
  if (std::system(server.c_str()) != 0) return 0;
  const std::string client =
      "sleep 0.5; " +
      from.command(0, fmt::format("{} -t ucp_am_bw -s {} -n {} -w 10 -f 2>/dev/null",
                                  TwoNetworks::kAddresses[1], bytes, kBytesOfARound / bytes)) +
      " | tail -n 1";
  FILE* const out = ::popen(client.c_str(), "r");
  if (!out) return 0;
  double iterations = 0, typical = 0, average = 0, overall = 0, now = 0, rate = 0;
  const int found =
      std::fscanf(out, "%lf %lf %lf %lf %lf %lf", &iterations, &typical, &average, &overall, &now, &rate);
  ::pclose(out);
  return found == 6 ? rate * 1.048576 : 0;
}

}  // namespace

/// Answers in a network of its own until the end.
void answer_far_calls(Parent& parent) {
  onecopy::testing::enter_network();
  parent.talk.say("entered");
  parent.talk.hear();
  const Pin pin(1);
  rpc::Agent agent({.name = "callee", .number = 1});  // one processor a host
  agent.define("take", [](rpc::Values&&) { return rpc::Values{}; });
  parent.talk.say(to_hex(agent.address()));
  for (std::string message; parent.talk.try_hear(message);) continue;
}

/// Hears the callee's address, and then sizes of tensors: says the MB/s of a round of each.
void make_far_calls(Parent& parent) {
  onecopy::testing::enter_network();
  parent.talk.say("entered");
  parent.talk.hear();
  const Pin pin(0);
  rpc::Agent agent({.name = "caller", .number = 0});
  agent.join(from_hex(parent.talk.hear()));
  parent.talk.say("joined");
  for (std::string message; parent.talk.try_hear(message);) {
    const std::int64_t bytes = std::stoll(message);
    const Tensor tensor = empty(Layout(DType::u8, {bytes}));
    const auto round = [&](std::int64_t count) {
      std::deque<rpc::Future> under_way;
      for (std::int64_t i = 0; i < count; ++i) {
        if (under_way.size() == kUnderWay) under_way.front().get(), under_way.pop_front();
        under_way.push_back(agent.call_async("callee", "take", {{}, {tensor}}));
      }
      for (rpc::Future& future : under_way) future.get();
    };
    round(10);
    const double ns = time_ns([&] { round(kBytesOfARound / bytes); });
    parent.talk.say(std::to_string(static_cast<double>(kBytesOfARound) * 1e3 / ns));
  }
}

Row call_far(const Effort& effort) {
  Row row("Tensors to a member on another host (C++, two network namespaces)",
          "at least 90 % of ucx_perftest from 1 MiB on");
  if (const std::string why = TwoNetworks::obstacle(); !why.empty())
    return row.note("not measured: " + why), row;
  ::setenv("ONECOPY_RPC_KEY", "a secret of this benchmark", 1);
  Host caller("make_far_calls"), callee("answer_far_calls");
  const TwoNetworks networks(caller.peer().pid(), callee.peer().pid());
  callee.peer().say("go");
  caller.peer().say("go");
  caller.peer().ask(callee.peer().hear());
  for (const std::int64_t bytes : {std::int64_t{1} << 20, std::int64_t{16} << 20}) {
    Samples ucx, ours;
    for (int i = 0; i < effort.rounds(kFarRounds); ++i) {
      ucx.add(ucx_rate(caller, callee, bytes));
      ours.add(std::stod(caller.peer().ask(std::to_string(bytes))));
    }
    const std::string size = fmt::format("{} MiB", bytes >> 20);
    row.add("ucx_perftest -t ucp_am_bw, " + size, ucx.median() / 1e3, "GB/s");
    const double ratio = ours.ratio_to(ucx);
    row.add("call_async(), " + size, ours.median() / 1e3, "GB/s", ratio, "ucx_perftest");
    row.judge("beside ucx_perftest, " + size, ratio, "", at_least(ratio, 0.9));
  }
  ::unsetenv("ONECOPY_RPC_KEY");
  return row;
}

}  // namespace onecopy::bench
