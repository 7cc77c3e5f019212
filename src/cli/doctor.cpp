// SPDX-License-Identifier: Apache-2.0
#include <sys/utsname.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "output_format.h"
#include "probe.h"
#include "text.h"

namespace onecopy::cli {
namespace {

struct ProbeResult {
  Probe probe;
  Finding finding;
};

ProbeResult run_probe(const Probe& probe) {
  try {
    return {probe, probe.run()};
  } catch (const std::exception& error) {
    return {probe, missing(error.what(), "")};
  }
}

std::vector<ProbeResult> run_all() {
  std::vector<ProbeResult> results;
  for (const auto& list : {memory_probes(), limit_probes(), process_probes(), vendor_probes(),
                           device_probes(), probes_between_processes()})
    for (const Probe& probe : list) results.push_back(run_probe(probe));
  return results;
}

bool is_fatal(const ProbeResult& result) {
  return result.probe.required && result.finding.verdict == Verdict::missing;
}

const char* word(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok: return "ok";
    case Verdict::slower: return "slower";
    case Verdict::missing: return "missing";
  }
  return "?";
}

std::string painted_word(const ProbeResult& result) {
  const char* text = word(result.finding.verdict);
  if (result.finding.verdict == Verdict::ok) return green(text);
  return is_fatal(result) ? red(text) : bold(text);
}

std::string kernel() {
  utsname name{};
  return ::uname(&name) == 0 ? fmt::format("{} {} {}", name.sysname, name.release, name.machine) : "?";
}

/// Returns the columns that a line leaves for the details.
std::size_t room_for_details(const std::vector<ProbeResult>& results) {
  constexpr std::size_t kBefore = 11;  // the verdicts, and the gaps between columns
  std::size_t longest = 0;
  for (const ProbeResult& result : results)
    longest = std::max(longest, std::string_view(result.probe.name).size());
  return std::max<std::size_t>(prose_width(), kBefore + longest + 20) - kBefore - longest;
}

void print_probes(const std::vector<ProbeResult>& results, std::size_t fatal) {
  Table table({{"verdict"}, {"what"}, {"seen"}});
  const std::size_t room = room_for_details(results);
  for (const ProbeResult& result : results) {
    std::string verdict = painted_word(result);
    std::string name = result.probe.name;
    for (std::string& line : wrap(result.finding.detail, room))
      table.add({std::exchange(verdict, ""), std::exchange(name, ""), std::move(line)});
    const char* arrow = "-> ";
    if (result.finding.advice.empty()) continue;
    for (const std::string& line : wrap(result.finding.advice, room - 3))
      table.add({"", "", dim(std::exchange(arrow, "   ") + line)});
  }
  fmt::print("{}\n\n{}\n", kernel(), table.str());
  if (fatal == 0) fmt::print("Everything that onecopy needs for CPU tensors works here.\n");
  else fmt::print("onecopy cannot work here: {} it needs failed.\n", plural(fatal, "thing"));
}

void print_probes_as_json(const std::vector<ProbeResult>& results, std::size_t fatal) {
  nlohmann::json probes = nlohmann::json::array();
  for (const ProbeResult& result : results)
    probes.push_back({{"name", result.probe.name},
                      {"verdict", word(result.finding.verdict)},
                      {"required", result.probe.required},
                      {"detail", result.finding.detail},
                      {"advice", result.finding.advice}});
  print_json({{"kernel", kernel()}, {"ok", fatal == 0}, {"probes", std::move(probes)}});
}

int doctor(OutputFormat format) {
  const std::vector<ProbeResult> results = run_all();
  std::size_t fatal = 0;
  for (const ProbeResult& result : results) fatal += is_fatal(result);
  if (format == OutputFormat::json) print_probes_as_json(results, fatal);
  else print_probes(results, fatal);
  return fatal == 0 ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand("doctor", "Check the features of this machine, and name the remedies");
  auto format = add_format_option(*sub);
  sub->footer(
      "Tries out everything that onecopy uses on this machine: each line is a real attempt.\n"
      "  ok       works\n"
      "  slower   works in a slower way, or a limit is low\n"
      "  missing  does not work; what follows is on the next line\n"
      "\n"
      "Examples:\n"
      "  onecopy doctor\n"
      "  onecopy doctor --format json | jq '.probes[] | select(.verdict != \"ok\")'\n"
      "\n"
      "Exit status: 0 unless something fails that onecopy cannot do without.");
  sub->callback([&command, format] { command = [format] { return doctor(*format); }; });
}

}  // namespace onecopy::cli
