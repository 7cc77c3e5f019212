// SPDX-License-Identifier: Apache-2.0
// The processes in two network namespaces that bench/call_hosts.cpp measures.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "onecopy/core/error.h"
#include "onecopy/rpc/agent.h"
#include "onecopy/share/share.h"
#include "os/fd.h"
#include "rows.h"
#include "rpc/address.h"
#include "rpc/hosts/endpoint.h"
#include "support/bare_tls.h"
#include "support/cpu.h"
#include "support/hex.h"
#include "support/samples.h"
#include "support/two_networks.h"
#include "transport/fabric.h"
#include "transport/tls/tls_stream.h"

namespace onecopy::bench {
namespace {

using namespace std::chrono_literals;
using onecopy::testing::TwoNetworks;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::size_t kTensorsUnderWay = 8, kCallsUnderWay = 1000;
constexpr std::int64_t kRoundTrips = 2000;

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

/// Returns a command of ucx_perftest, which lies beside the library that rpc uses.
std::string perftest(const std::string& arguments) {
  const std::string library = transport::find_fabric("ucx").path, end = "/lib/libucp.so.0";
  const std::string root = library.substr(0, library.size() - std::min(library.size(), end.size()));
  return fmt::format(
      "UCX_TLS=tcp LD_LIBRARY_PATH={0}/lib:{0}/../libucx_cu13.libs {0}/bin/ucx_perftest -p {1} {2}", root,
      BareTlsServer::kPort + 1, arguments);
}

std::string printed_by(const std::string& command) {
  std::string text;
  std::array<char, 4096> part{};
  FILE* const pipe = ::popen(command.c_str(), "r");
  while (pipe && std::fgets(part.data(), part.size(), pipe)) text += part.data();
  if (pipe) ::pclose(pipe);
  return text;
}

/// Returns a field of the last line that ucx_perftest prints.
double field_of_perftest(const std::string& arguments, int field) {
  const std::string client =
      perftest(fmt::format("{} -v -f {} 2>/dev/null | tail -n 1", TwoNetworks::kAddresses[1], arguments));
  for (int tries = 0; tries < 50; ++tries) {
    std::istringstream fields(printed_by(client));
    double number = 0;
    for (int i = 0; i <= field && fields >> number; ++i) fields.ignore();
    if (fields) return number;
    std::this_thread::sleep_for(100ms);  // its server is about to listen
  }
  throw std::runtime_error("ucx_perftest does not run");
}

/// Returns a line of /proc/self/status in bytes.
double status_bytes(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return std::stod(line.substr(name.size() + 1)) * 1024;
  return 0;
}

/// The caller's measurements, by the word that requests each. Rates are per second, times in nanoseconds.
class Caller {
 public:
  Caller(rpc::Agent& agent, BareTls& bare) : agent_(agent), bare_(bare) {}

  double measure(const std::string& what, std::int64_t bytes) {
    const std::map<std::string, std::function<double()>> measures = {
        {"bare-tensors", [&] { return rate_of([&] { bare_.send(bytes, kGiB / bytes); }, kGiB); }},
        {"tensors", [&] { return tensors(bytes); }},
        {"bare-small", [&] { return per_trip([&] { bare_.send(0, 0); }); }},
        {"small", [&] { return per_trip([&] { agent_.call("callee", "take"); }); }},
        {"empty", [&] { return empty_calls(bytes); }},
        {"perftest-tensors", [&] { return perftest_tensors(bytes); }},
        {"perftest-small", [&] { return field_of_perftest("-t ucp_am_lat -s 8 -n 5000", 2) * 2e3; }},
        {"beside", [&] { return beside_senders(); }},
        {"memory", [&] { return memory_of_a_sender(); }},
        {"until-ended", [&] { return until_ended(); }},
        {"lost", [&] { return lost_calls(bytes); }}};
    return measures.at(what)();
  }

 private:
  static rpc::Values tensor_of(std::int64_t bytes) { return {{}, {empty(Layout(DType::u8, {bytes}))}}; }
  void take() { agent_.call("callee", "take"); }

  double tensors(std::int64_t bytes) {
    const rpc::Values values = tensor_of(bytes);
    const auto begin = [&] { return agent_.call_async("callee", "take", rpc::Values(values)); };
    keep_under_way(kTensorsUnderWay, 10, begin);
    return rate_of([&] { keep_under_way(kTensorsUnderWay, kGiB / bytes, begin); }, kGiB);
  }
  double empty_calls(std::int64_t count) {
    const auto begin = [&] { return agent_.call_async("callee", "take"); };
    return rate_of([&] { keep_under_way(kCallsUnderWay, count, begin); }, count);
  }
  double perftest_tensors(std::int64_t bytes) {
    const std::string arguments = fmt::format("-t ucp_am_bw -s {} -n {} -w 10", bytes, kGiB / bytes);
    return field_of_perftest(arguments, 5) * (1 << 20);
  }
  /// Returns the longest time of a small call while two threads send tensors of 1 GiB.
  double beside_senders() {
    std::atomic<int> senders{2};
    std::vector<std::jthread> threads;
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([&] {
        const rpc::Values values = tensor_of(kGiB);
        for (int n = 0; n < 2; ++n) agent_.call("callee", "take", rpc::Values(values));
        --senders;
      });
    Samples times;
    while (senders == 2) times.add(time_ns([&] { take(); }));
    return times.quantile(1);
  }
  /// Returns the peak memory of this process while it sends a tensor of 1 GiB, in units of the tensor.
  double memory_of_a_sender() {
    rpc::Values values = tensor_of(kGiB);
    std::memset(values.tensors[0].data(), 1, static_cast<std::size_t>(kGiB));
    std::ofstream("/proc/self/clear_refs") << 5;
    const double before = status_bytes("VmRSS");
    agent_.call("callee", "take", std::move(values));
    return 1 + (status_bytes("VmHWM") - before) / static_cast<double>(kGiB);
  }
  /// Waits for an answer that does not come, and returns when that was noticed.
  double until_ended() {
    rpc::Future waiting = agent_.call_async("callee", "wait");
    try {
      waiting.get();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_died) throw;
    }
    return static_cast<double>(Clock::now().time_since_epoch().count());
  }
  /// Calls for some seconds, and returns the number of calls that failed.
  double lost_calls(std::int64_t seconds) {
    int lost = 0;
    for (const auto end = Clock::now() + std::chrono::seconds(seconds); Clock::now() < end;) {
      try {
        agent_.call("callee", "take", tensor_of(1 << 20));
      } catch (const Error&) {
        ++lost;
      }
    }
    return lost;
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

/// Connects without the key: 500 connections that stay silent, and then, 20 times a second, one that closes at once or one
/// with a wrong key.
void be_strange(const HostPort& there, const std::atomic<bool>& is_over, std::atomic<int>& silent_ones) {
  constexpr int kSilent = 500;
  const auto wrong =
      std::make_shared<const transport::TlsContext>(std::as_bytes(std::span("another group's secret")));
  std::vector<StreamSocket> silent;
  for (int i = 0; !is_over; ++i) {
    try {
      StreamSocket socket = StreamSocket::connect(there, 1s);
      if (silent_ones < kSilent) silent.push_back(std::move(socket)), ++silent_ones;
      else if (i % 2 == 0)
        transport::TlsStream(wrong, std::move(socket), transport::Side::client)
            .handshake(Deadline::after(1s));
    } catch (const Error&) {  // refused
    }
    if (silent_ones == kSilent) std::this_thread::sleep_for(50ms);
  }
}

}  // namespace

/// Receives the callee's address and a pid, whose network namespace it enters. Then each message begins or ends an attack.
void attack_a_host(Parent& parent) {
  const auto address = rpc::Address::from_bytes(from_hex(parent.talk.hear()));
  const HostPort there = HostPort::parse(rpc::Endpoint::parse(address.endpoint).at);
  const Fd network(
      ::open(fmt::format("/proc/{}/ns/net", parent.talk.hear()).c_str(), O_RDONLY | O_CLOEXEC));
  if (::setns(network.get(), CLONE_NEWNET) != 0) throw std::runtime_error("no network namespace");
  for (std::string message; parent.talk.try_hear(message);) {
    std::atomic<bool> is_over{false};
    std::atomic<int> silent{0};
    std::jthread stranger([&] { be_strange(there, is_over, silent); });
    while (silent < 500) std::this_thread::sleep_for(1ms);
    parent.talk.say("begun");
    parent.talk.hear();
    is_over = true;
    stranger.join();
    parent.talk.say("ended");
  }
}

/// Answers calls in its own network namespace until the end.
void answer_calls_of_a_host(Parent& parent) {
  onecopy::testing::enter_network();
  parent.talk.say("entered");
  parent.talk.hear();
  const Pin pin(1);
  BareTlsServer bare;
  rpc::Agent agent({.name = "callee", .number = 1});
  agent.define("take", [](rpc::Values&&) { return rpc::Values{}; });
  agent.define("wait", [](rpc::Values&&) {
    std::this_thread::sleep_for(1h);
    return rpc::Values{};
  });
  parent.talk.say(to_hex(agent.address()));
  for (std::string message; parent.talk.try_hear(message);) {
    if (message == "perftest") std::system((perftest(">/dev/null 2>&1") + " &").c_str());
    parent.talk.say(std::to_string(status_bytes("VmRSS")));
  }
}

/// Receives the callee's address, and then the names of measurements with a number, such as the size of a tensor.
void call_a_host(Parent& parent) {
  onecopy::testing::enter_network();
  parent.talk.say("entered");
  parent.talk.hear();
  const Pin pin(0);
  rpc::Agent agent({.name = "caller", .number = 0});
  agent.join(from_hex(parent.talk.hear()));
  HostPort there = HostPort::parse(fmt::format("{}:{}", TwoNetworks::kAddresses[1], BareTlsServer::kPort));
  BareTls bare(StreamSocket::connect(there, 10s), transport::Side::client);
  Caller caller(agent, bare);
  parent.talk.say("joined");
  for (std::string message; parent.talk.try_hear(message);) {
    std::istringstream words(message);
    std::string what;
    std::int64_t number = 0;
    words >> what >> number;
    parent.talk.say(std::to_string(caller.measure(what, number)));
  }
}

}  // namespace onecopy::bench
