// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "child.h"
#include "commands.h"
#include "measure.h"
#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "os/process.h"
#include "output_format.h"
#include "ping_pong.h"
#include "text.h"

namespace onecopy::cli {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds kTimeout{60};
constexpr std::size_t kLarge = std::size_t{16} << 20;

/// A median, and the figure it is compared with.
struct Measurement {
  std::string what;
  double ns = 0;
  std::string limit;
  double ratio = 0;
};

Tensor bytes(std::size_t size) { return empty(Layout(DType::u8, {static_cast<std::int64_t>(size)})); }

double measure_ping_pong(Child& peer) {
  const Tensor tensor = bytes(sizeof(PingPong));
  auto& words = *new (tensor.data()) PingPong{};
  const Handle handle = share(tensor);
  peer.tell({{"do", "pong"}, {"handle", handle.to_text()}});
  std::uint32_t number = 0;
  const double ns = median_ns(31, 2000, [&](int rounds) {
    for (int i = 0; i < rounds; ++i) words.ping(++number);
  });
  words.stop();
  peer.hear(kTimeout);
  return ns;
}

double measure_pipe(Child& peer) {
  const auto [there_read, there_write] = make_pipe();
  const auto [back_read, back_write] = make_pipe();
  const auto exchange = [to = there_write.get(), from = back_read.get()](char byte) {
    if (::write(to, &byte, 1) != 1 || ::read(from, &byte, 1) != 1)
      throw_errno("a byte through a pipe", errno);
  };
  peer.tell({{"do", "bytes"}, {"from", there_read.get()}, {"to", back_write.get()}});
  const double ns = median_ns(31, 1000, [&](int rounds) {
    for (int i = 0; i < rounds; ++i) exchange(1);
  });
  exchange(0);
  peer.hear(kTimeout);
  return ns;
}

/// Measures a small tensor through one queue and back through another.
double measure_queue(Child& peer) {
  Queue there = Queue::create();
  Queue back = Queue::create();
  peer.tell({{"do", "queue"}, {"from", there.handle().to_text()}, {"to", back.handle().to_text()}});
  const Tensor tensor = bytes(4);
  const double ns = median_ns(31, 2000, [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      there.put(tensor);
      back.get();
    }
  });
  there.put(Message{});
  peer.hear(kTimeout);
  return ns;
}

double measure_share() {
  const Tensor tensor = bytes(4096);
  return median_ns(31, 10000, [&](int rounds) {
    for (int i = 0; i < rounds; ++i) share(tensor);
  });
}

/// Measures filling 16 MiB in place, and filling 16 MiB that was just freed and allocated again.
std::array<double, 2> measure_fill() {
  const std::vector<char> source(kLarge, 1);
  const Tensor kept = bytes(kLarge);
  const double in_place = median_ns(15, 4, [&](int rounds) {
    for (int i = 0; i < rounds; ++i) std::memcpy(kept.data(), source.data(), kLarge);
  });
  const double again = median_ns(15, 4, [&](int rounds) {
    for (int i = 0; i < rounds; ++i) std::memcpy(bytes(kLarge).data(), source.data(), kLarge);
  });
  return {in_place, again};
}

std::vector<Measurement> measure() {
  Child peer({"bench-peer"});
  std::vector<Measurement> results;
  const double ping = measure_ping_pong(peer);
  const double pipe = measure_pipe(peer);
  results.push_back({"word in shared memory and back, both spinning", ping, "", 0});
  results.push_back({"byte through a pipe and back", pipe, "", 0});
  const double queue = measure_queue(peer);
  results.push_back({"tensor through a queue and back", queue, "word and back", queue / ping});
  results.push_back({"share a tensor", measure_share(), "", 0});
  const Tensor tensor = bytes(std::size_t{64} << 20);
  const Handle handle = share(tensor);
  const Json opened = peer.ask({{"do", "open"}, {"handle", handle.to_text()}}, kTimeout);
  results.push_back(
      {"first open of an owner (connect, map 64 MiB)", opened.at("first").get<double>(), "", 0});
  results.push_back({"open and release a tensor, later", opened.at("later").get<double>(), "", 0});
  const auto [in_place, again] = measure_fill();
  results.push_back({"fill 16 MiB in place (memcpy)", in_place, "", 0});
  results.push_back({"allocate, fill and free 16 MiB", again, "fill in place", again / in_place});
  return results;
}

void print_table(const std::vector<Measurement>& results) {
  Table table({{"what"}, {"median", Align::right}, {"ratio", Align::right}, {"to"}});
  for (const Measurement& result : results)
    table.add({result.what, format_duration(std::chrono::nanoseconds(static_cast<std::int64_t>(result.ns))),
               result.limit.empty() ? "" : fmt::format("{:.2f}", result.ratio), result.limit});
  fmt::print("{} usable\n\n{}", plural(static_cast<std::uint64_t>(usable_cpus()), "processor"),
             table.str());
}

void print_as_json(const std::vector<Measurement>& results) {
  Json rows = Json::array();
  for (const Measurement& result : results) {
    Json row{{"what", result.what}, {"median_ns", result.ns}};
    if (!result.limit.empty()) row.update({{"ratio", result.ratio}, {"to", result.limit}});
    rows.push_back(std::move(row));
  }
  print_json({{"processors", usable_cpus()}, {"results", std::move(rows)}});
}

}  // namespace

void add_bench(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand("bench", "Measure this machine in a few seconds, beside its raw limits");
  auto format = add_format_option(*sub);
  sub->footer(
      "Two processes. Medians; the ratio says how far from the raw limit in the last column. Run it on an\n"
      "idle machine: with other work on the processors the numbers mean little.\n"
      "\n"
      "Examples:\n  onecopy bench\n  onecopy bench --format json > $(hostname).json");
  sub->callback([&command, format] {
    command = [format] {
      const std::vector<Measurement> results = measure();
      if (*format == OutputFormat::json) print_as_json(results);
      else print_table(results);
      return 0;
    };
  });
}

}  // namespace onecopy::cli
