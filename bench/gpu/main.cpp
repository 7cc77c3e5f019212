// SPDX-License-Identifier: Apache-2.0
// Measures what the project promises about GPUs, beside the raw limits of the same run: onecopy_bench_gpu
// [--quick] [--out DIRECTORY]. ONECOPY_CUDA_DRIVER names another driver, such as the simulator.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "device/cuda/devices.h"
#include "gpu_rows.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"

namespace onecopy::bench {

std::size_t cards() { return backend(DeviceType::cuda).devices().size(); }

std::int64_t large_bytes(std::int64_t wanted, int part) {
  const std::uint64_t total = backend(DeviceType::cuda).devices().at(0).total_bytes;
  return std::min(wanted, static_cast<std::int64_t>(total / part >> 21 << 21));
}

Tensor card_bytes(std::int64_t bytes, Device device) { return empty(Layout(DType::u8, {bytes}), device); }

namespace {

const std::map<std::string, void (*)(Parent&)> kRoles = {
    {"follow_on_a_card", follow_on_a_card},
    {"open_on_a_card", open_on_a_card},
    {"import_on_a_card", import_on_a_card},
    {"open_many_on_a_card", open_many_on_a_card},
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

std::string for_file_names(std::string name) {
  for (char& c : name)
    c = std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(c)) : '-';
  return name;
}

Machine describe_machine_with_cards() {
  Machine machine = describe_machine();
  const auto devices = backend(DeviceType::cuda).devices();
  const int version = cuda::Driver::get().version();
  machine.facts.emplace_back("CUDA driver interface",
                             fmt::format("{}.{}", version / 1000, version % 1000 / 10));
  for (const DeviceInfo& info : devices)
    machine.facts.emplace_back(info.device.str(), fmt::format("{}, {} MiB, UUID {}", info.name,
                                                              info.total_bytes >> 20, info.uuid.str()));
  machine.kind += fmt::format("-{}x-{}", devices.size(), for_file_names(devices.at(0).name));
  return machine;
}

std::vector<Row> measure_all(bool quick) {
  const int rounds = quick ? 5 : 50;
  std::vector<Row> rows;
  for (const auto& measure : std::vector<std::function<Row()>>{
           [&] { return hand_over_on_a_card(rounds); },
           [&] { return open_first_on_a_card(quick ? 2 : 10); }, [] { return open_a_state_dict(); },
           // Runs before the second card is used, which adds 18 descriptors to the process.
           [] { return rest_on_a_card(); }, [&] { return copy_between_cards(quick ? 3 : 20); }}) {
    rows.push_back(measure());
    fmt::print("{}\n", to_text(rows.back()));
    std::fflush(stdout);
  }
  return rows;
}

int run(bool quick, const std::string& directory) {
  if (cards() == 0) throw Error(ErrorCode::unsupported, "no CUDA device here: see onecopy doctor");
  const Machine machine = describe_machine_with_cards();
  for (const auto& [name, value] : machine.facts) fmt::print("{}: {}\n", name, value);
  fmt::print("\n");
  const std::vector<Row> rows = measure_all(quick);
  int misses = 0;
  for (const Row& row : rows)
    for (const Figure& figure : row.figures) misses += figure.bound && !figure.bound->holds();
  if (!directory.empty()) fmt::print("written: {}\n", write_results(directory, machine, rows));
  fmt::print("{}\n",
             misses == 0 ? "every promise kept" : fmt::format("{} figures miss their bound", misses));
  return 0;
}

}  // namespace
}  // namespace onecopy::bench

int main(int argc, char** argv) {
  using namespace onecopy::bench;
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 2 && words[0] == "peer") return be_a_peer(words[1]);
  const bool quick = std::find(words.begin(), words.end(), "--quick") != words.end();
  const auto out = std::find(words.begin(), words.end(), "--out");
  try {
    return run(quick, out != words.end() && out + 1 != words.end() ? *(out + 1) : std::string());
  } catch (const std::exception& e) {
    fmt::print(stderr, "onecopy_bench_gpu: {}\n", e.what());
    return 1;
  }
}
