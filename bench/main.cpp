// SPDX-License-Identifier: Apache-2.0
// Measures everything that the project promises about speed and memory, in one run with the raw limits.
#include <fmt/format.h>

#include <algorithm>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "onecopy/share/share.h"
#include "rows.h"

namespace onecopy::bench {
namespace {

const std::map<std::string, void (*)(Parent&)> kRoles = {
    {"follow_exchanges", follow_exchanges}, {"wait_for_items", wait_for_items},
    {"open_handles", open_handles},         {"open_one_handle", open_one_handle},
    {"own_a_million", own_a_million},       {"open_a_million", open_a_million},
    {"answer_calls", answer_calls},         {"answer_calls_of_a_host", answer_calls_of_a_host},
    {"call_a_host", call_a_host},           {"attack_a_host", attack_a_host},
};

int be_a_peer(const std::string& role) {
  Parent parent;
  try {
    kRoles.at(role)(parent);
    return 0;
  } catch (const std::exception& e) {
    try {
      parent.talk.say(std::string("error: ") + e.what());
    } catch (const std::exception&) {  // the parent has ended, so there is nothing to measure
    }
    return 1;
  }
}

struct NamedRow {
  std::string name;
  std::function<Row()> measure;
};

std::vector<NamedRow> all_rows(const Effort& effort, Iceoryx& iceoryx) {
  return {
      {"spinning", [&] { return hand_over_spinning(effort, iceoryx); }},
      {"blocking", [&] { return hand_over_blocking(effort, iceoryx); }},
      {"idle", [&] { return wait_idle(effort); }},
      {"one-way", [&] { return send_one_way(effort, iceoryx); }},
      {"large", [&] { return hand_over_large(effort); }},
      {"share-open", [&] { return share_and_open(effort); }},
      {"fill", [&] { return allocate_and_fill(effort); }},
      {"first-open", [&] { return open_first(effort); }},
      {"million", [&] { return share_a_million(effort); }},
      {"load", [&] { return load_file(effort); }},
      {"rpc", [&] { return call_spinning(effort); }},
      {"rpc-asleep", [&] { return call_asleep(effort); }},
      {"rpc-hosts", [&] { return call_hosts(effort); }},
      {"rpc-hosts", [&] { return call_hosts_over_ucx(effort); }},
      {"rpc-hosts", [&] { return cut_off_hosts(effort); }},
  };
}

int misses_in(const std::vector<Row>& rows) {
  int misses = 0;
  for (const Row& row : rows)
    for (const Figure& figure : row.figures) misses += figure.bound && !figure.bound->holds();
  return misses;
}

int run(const std::vector<std::string>& only, const Effort& effort, const std::string& directory) {
  const Machine machine = describe_machine();
  for (const auto& [name, value] : machine.facts) fmt::print("{}: {}\n", name, value);
  fmt::print("\n");
  // The library remembers at its first use how many processors it may use, so it is used before any thread is pinned.
  empty(Layout(DType::u8, {std::int64_t{64} << 20}));
  Iceoryx iceoryx;
  std::vector<Row> rows;
  for (const NamedRow& row : all_rows(effort, iceoryx)) {
    if (!only.empty() && std::find(only.begin(), only.end(), row.name) == only.end()) continue;
    rows.push_back(row.measure());
    fmt::print("{}\n", to_text(rows.back()));
    std::fflush(stdout);
  }
  if (only.empty())
    fmt::print("written: {}; bench/page.py makes the page of it\n",
               write_results(directory, machine, rows));
  const int misses = misses_in(rows);
  fmt::print("{}\n",
             misses == 0 ? "every promise kept" : fmt::format("{} figures miss their bound", misses));
  return 0;
}

}  // namespace
}  // namespace onecopy::bench

int main(int argc, char** argv) {
  using namespace onecopy::bench;
  if (argc == 3 && std::string(argv[1]) == "peer") return be_a_peer(argv[2]);
  CLI::App app(
      "Measures what onecopy promises about speed and memory, beside the raw limits of this machine.");
  std::vector<std::string> only;
  Effort effort;
  std::string directory = std::string(ONECOPY_SOURCE_DIR) + "/bench/results";
  app.add_option(
      "rows", only,
      "Only these, and write no results: spinning, blocking, idle, one-way, large, share-open, fill, "
      "first-open, million, load, rpc, rpc-asleep, rpc-hosts");
  app.add_flag("--quick", effort.quick, "A fifth of the rounds");
  app.add_option("--out", directory, "Where the results go")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return run(only, effort, directory);
  } catch (const std::exception& e) {
    fmt::print(stderr, "onecopy_bench: {}\n", e.what());
    return 1;
  }
}
