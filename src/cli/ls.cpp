// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "core/throw_error.h"
#include "interrupts.h"
#include "onecopy/share/stats.h"
#include "output_format.h"
#include "owner_table.h"
#include "prometheus.h"
#include "share/format/info_text.h"
#include "store/format/store_directory.h"
#include "store_table.h"
#include "text.h"

namespace onecopy::cli {
namespace {

struct LsOptions {
  std::shared_ptr<OutputFormat> format;
  bool details = false;
  bool groups = false;    ///< lists rpc groups instead of memory
  std::vector<int> pids;  ///< the processes to list; empty for all
  std::optional<std::chrono::nanoseconds> watch;
  std::string version;  ///< of the command

  bool wants(int pid) const { return pids.empty() || std::ranges::find(pids, pid) != pids.end(); }
};

/// Returns an owner in JSON, with its command line. All JSON output uses this function.
nlohmann::json listing(const ListedOwner& owner) {
  nlohmann::json row = nlohmann::json::parse(to_json(owner.info));
  row["command"] = owner.command;
  return row;
}

nlohmann::json listing(const std::vector<ListedOwner>& owners, const std::vector<SilentOwner>& silent,
                       const StoreState& state) {
  nlohmann::json rows = nlohmann::json::array();
  for (const ListedOwner& owner : owners) rows.push_back(listing(owner));
  nlohmann::json others = nlohmann::json::array();
  for (const SilentOwner& owner : silent)
    others.push_back({{"pid", owner.pid}, {"socket", owner.socket}, {"why", owner.why}});
  return {{"owners", std::move(rows)}, {"silent", std::move(others)}, {"store", json_of(state)}};
}

/// Returns a line that lists at most eight processes; empty if there are none.
std::string line_about(const std::string& what, const std::vector<std::string>& processes) {
  constexpr std::size_t kMax = 8;
  if (processes.empty()) return "";
  const auto shown = std::span(processes).first(std::min(kMax, processes.size()));
  return fmt::format("{}: {}{}\n", what, fmt::join(shown, ", "), processes.size() > kMax ? ", ..." : "");
}

/// Returns a line about owners without memory: they borrow, or have released all their memory.
std::string idle_line(const std::vector<ListedOwner>& idle) {
  std::vector<std::string> pids;
  pids.reserve(idle.size());
  for (const ListedOwner& owner : idle) pids.push_back(fmt::format("{}", owner.info.pid));
  return line_about(fmt::format("{} without memory of {} own", plural(idle.size(), "process"),
                                idle.size() == 1 ? "its" : "their"),
                    pids);
}

/// Returns a line about pinned memory, of this owner or of others: each process pins its own mappings.
std::string pinned_line(const std::vector<ListedOwner>& owners) {
  std::vector<std::string> who;
  for (const ListedOwner& owner : owners)
    if (const std::uint64_t bytes = owner.info.stats.pinned_bytes; bytes != 0)
      who.push_back(fmt::format("{} ({})", owner.info.pid, format_bytes(bytes)));
  return line_about("Pinned for cards", who);
}

/// Returns a line about memory that captured graphs share. None of it is shared with other processes.
std::string arenas_line(const std::vector<ListedOwner>& owners) {
  std::vector<std::string> who;
  for (const ListedOwner& owner : owners) {
    std::uint64_t bytes = 0, graphs = 0;
    for (const ArenaInfo& arena : owner.info.arenas) {
      bytes += arena.shared + arena.own;
      graphs += arena.windows;
    }
    if (!owner.info.arenas.empty())
      who.push_back(
          fmt::format("{} ({} for {})", owner.info.pid, format_bytes(bytes), plural(graphs, "graph")));
  }
  return line_about("Arenas of captured graphs", who);
}

std::string silent_lines(const std::vector<SilentOwner>& silent) {
  std::string text;
  for (const SilentOwner& owner : silent) text += fmt::format("Not listed: {}\n", escaped(owner.why));
  return text;
}

std::string as_text(std::vector<ListedOwner> owners, const std::vector<SilentOwner>& silent,
                    const LsOptions& options) {
  const std::string below = pinned_line(owners) + arenas_line(owners);
  const auto idle_from = std::stable_partition(owners.begin(), owners.end(), [&](const ListedOwner& owner) {
    return options.details || shares_something(owner.info);
  });
  const std::vector<ListedOwner> idle(idle_from, owners.end());
  owners.erase(idle_from, owners.end());
  std::string text = owners.empty() ? "No process of this user that answers shares memory.\n"
                                    : owner_table(owners, line_width());
  text += idle_line(idle) + below;
  if (options.details)
    for (const ListedOwner& owner : owners) text += "\n" + owner_details(owner);
  return text + silent_lines(silent);
}

std::string store_section(const StoreState& state) {
  if (!state.problem.empty()) return fmt::format("\nNot listed: {}\n", escaped(state.problem));
  const std::string kept = kept_lines(state);
  if (!state.keeper) return kept.empty() ? "" : "\n" + kept;
  return "\n" + keeper_line(state) +
         (state.objects.empty() ? "It is empty.\n" : store_table(state.objects, line_width())) + kept;
}

void check_asked_for(const OwnerList& list, const LsOptions& options) {
  for (const int pid : options.pids) {
    const auto has_pid = [&](const auto& owner) { return owner.pid == pid; };
    if (std::ranges::none_of(list.owners, has_pid) && std::ranges::none_of(list.silent, has_pid))
      throw_error(ErrorCode::invalid_argument,
                  "process {} does not use onecopy, has ended, or belongs to another user; onecopy ls "
                  "lists the processes that do",
                  pid);
  }
}

std::string look(const LsOptions& options) {
  store::StoreDirectories::of_this_user().check();
  OwnerList list = ask_owners();
  check_asked_for(list, options);
  std::erase_if(list.owners, [&](const OwnerInfo& owner) { return !options.wants(owner.pid); });
  std::erase_if(list.silent, [&](const SilentOwner& owner) { return !options.wants(owner.pid); });
  const std::vector<ListedOwner> owners = sorted(std::move(list.owners));
  const StoreState state = options.pids.empty() ? poll_store() : StoreState();
  if (*options.format == OutputFormat::prometheus)
    return prometheus_text(owners, list.silent.size(), options.version) +
           (options.pids.empty() ? prometheus_text(state) : "");
  if (*options.format == OutputFormat::json)
    return json_text(listing(owners, list.silent, state), options.watch ? -1 : 2) + "\n";
  if (!options.groups) return as_text(owners, list.silent, options) + store_section(state);
  return group_table(owners) + silent_lines(list.silent);
}

/// Returns the text so that it overwrites the last one on the terminal, as much of it as fits.
std::string redrawn(const std::string& text, std::size_t rows) {
  std::string screen = "\033[H";
  std::size_t from = 0;
  for (std::size_t row = 1; row < rows && from < text.size(); ++row) {
    const std::size_t end = text.find('\n', from);
    screen += text.substr(from, end - from) + "\033[K\n";
    from = end + 1;
  }
  return screen + "\033[J";
}

int watch_owners(const LsOptions& options) {
  Interrupts interrupts;
  const bool is_table = *options.format == OutputFormat::table;
  do {
    const std::string text = look(options);
    if (const auto size = is_table ? terminal_size() : std::nullopt)
      fmt::print("{}", redrawn(text, size->rows));
    else fmt::print("{}{}", text, is_table ? "\n" : "");
    flush_output();
  } while (!interrupts.wait_for(*options.watch));
  return 0;
}

int ls(const LsOptions& options) {
  if (options.watch) return watch_owners(options);
  fmt::print("{}", look(options));
  return 0;
}

int pid_in(const std::string& word) {
  int pid = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), pid);
  if (error != std::errc() || end != word.data() + word.size() || pid <= 0)
    throw CLI::ValidationError("-v", fmt::format("{} is not a pid", word));
  return pid;
}

void add_options(CLI::App& sub, const std::shared_ptr<LsOptions>& options) {
  sub.add_option_function<std::vector<std::string>>(
         "-v,--verbose",
         [options](const std::vector<std::string>& words) {
           options->details = true;
           for (const std::string& word : words)
             if (word != "all") options->pids.push_back(pid_in(word));
         },
         "Only these processes, with their devices, borrowers and blocks in transit; all without a PID")
      ->expected(0, CLI::detail::expected_max_vector_size)
      ->default_str("all")
      ->type_name("[PID...]");
  sub.add_flag("--rpc", options->groups, "Members of rpc groups, with their peers, calls and routes");
  sub.add_option_function<double>(
         "--watch",
         [options](double seconds) {
           options->watch =
               std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
         },
         "List again and again until Ctrl-C")
      ->expected(0, 1)
      ->default_str("2")
      ->check(CLI::Range(0.01, 86400.0, "SECONDS"))
      ->type_name("[SECONDS]");
}

}  // namespace

void add_ls(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand("ls", "List who shares what on this machine, and who borrows it");
  auto options = std::make_shared<LsOptions>();  // shared by the parser, which sets it, and the command
  options->format = add_format_option(*sub, true);
  options->version = app.version();
  add_options(*sub, options);
  sub->footer(
      "Asks every process of this user that shares memory; those with most memory come first:\n"
      "  memory      physical memory reserved in its segments\n"
      "  bytes       allocations alive in it, which are its blocks\n"
      "  in transit  blocks held for a receiver that has not taken them yet; those of a queue whose\n"
      "              users have gone for ten seconds, or until memory is short\n"
      "  limbo       blocks it has freed that a process still borrows\n"
      "  borrowers   processes that have opened some of it\n"
      "Below the table: processes without memory of their own, arenas of captured graphs, processes that\n"
      "did not answer within two seconds, and the objects of the store, or why its keeper does not "
      "answer.\n"
      "On a terminal, command lines are cut to its width; -v shows them whole.\n"
      "\n"
      "Examples:\n"
      "  onecopy ls\n"
      "  onecopy ls -v 4711                # devices, arenas, borrowers, blocks in transit\n"
      "  onecopy ls --rpc                  # rpc groups: peers, calls and routes\n"
      "  onecopy ls --watch\n"
      "  onecopy ls --format json | jq '.owners[] | {pid, bytes: .stats.live_bytes}'\n"
      "  onecopy ls --format prometheus    # a file for the text file collector of node_exporter");
  sub->callback([&command, options] { command = [options] { return ls(*options); }; });
}

}  // namespace onecopy::cli
