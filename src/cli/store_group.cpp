// SPDX-License-Identifier: Apache-2.0
#include "store_group.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "core/throw_error.h"
#include "onecopy/core/error.h"
#include "onecopy/store/group.h"
#include "os/file.h"
#include "os/host_address.h"
#include "store/ferry/host_key.h"
#include "store/group/remembered.h"
#include "text.h"

namespace onecopy::cli {
namespace {

using store::group::Config;

std::string name_of_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// Returns a directory that outlives a restart of this machine, and makes it.
std::string state_directory(const std::string& wanted) {
  std::string path = wanted;
  if (path.empty() && !variable("XDG_STATE_HOME").empty()) path = variable("XDG_STATE_HOME") + "/onecopy";
  if (path.empty() && !variable("HOME").empty()) path = variable("HOME") + "/.local/state/onecopy";
  if (path.empty())
    throw Error(ErrorCode::invalid_argument, "give a directory on a disk by --state: HOME is not set");
  const std::filesystem::path absolute = std::filesystem::absolute(path).lexically_normal();
  std::error_code ignored;  // the next call says what is wrong
  std::filesystem::create_directories(absolute.parent_path(), ignored);
  ensure_private_directory(absolute.string());
  return absolute.string();
}

std::string absolute(const std::string& path) {
  return path.empty() ? "" : std::filesystem::absolute(path).string();
}

store::Group group() { return store::Group(store::Store::connect({.autostart = false})); }

int leave(const std::string& host) {
  store::Group group = cli::group();
  group.leave(host);
  fmt::print("{} has left the group {}; `onecopy store serve` there joins it again\n",
             host.empty() ? "This host" : escaped(host), group.name().value_or(""));
  return 0;
}

int restore() {
  const std::vector<std::string> heard = group().restore();
  fmt::print("etcd has again what {} remember. A host that remembers more says so, and stops again.\n",
             fmt::join(heard, ", "));
  return 0;
}

}  // namespace

void add_group_options(CLI::App& serve, GroupOptions& options) {
  auto* const group =
      serve.add_option("--group", options.group,
                       "Join a group of hosts, which all show the same versions in the same order");
  group->type_name("NAME")->needs(serve.get_option("--listen"));
  auto* const etcd =
      serve.add_option("--etcd", options.endpoints, "The URLs of etcd, which knows the group");
  etcd->type_name("URL[,URL]")->delimiter(',')->needs(group);
  group->needs(etcd);
  serve.add_option("--name", options.name, "The name of this host in the group; default: its host name")
      ->needs(group);
  serve
      .add_option("--address", options.address,
                  "Where other hosts of the group reach this one, if it listens at all addresses")
      ->needs(group)
      ->type_name("HOST:PORT");
  serve
      .add_option(
          "--rack", options.rack,
          "The rack of this host: versions go from host to host within a rack, then to the next one")
      ->needs(group)
      ->type_name("NAME");
  serve
      .add_option("--state", options.state,
                  "A directory on a disk, where this host remembers what it has shown; default: "
                  "~/.local/state/onecopy")
      ->needs(group)
      ->type_name("DIR");
  serve.add_option("--etcd-ca", options.ca_file, "The certificates that sign those of etcd")
      ->needs(group)
      ->type_name("FILE");
  serve.add_option("--etcd-login", options.login_file, "A file with USER:PASSWORD for etcd")
      ->needs(group)
      ->type_name("FILE");
}

std::optional<Config> group_config(const GroupOptions& options, const std::string& at) {
  if (options.group.empty()) return {};
  Config config;
  config.group = options.group;
  config.host = options.name.empty() ? name_of_host() : options.name;
  store::group::check_label(config.host, "a host of a group");
  const bool is_everywhere = at.starts_with("0.0.0.0:") || at.starts_with("[::]:");
  if (options.address.empty() && is_everywhere)
    throw_error(ErrorCode::invalid_argument,
                "other hosts cannot reach this one at {}: say by --address HOST:PORT where they can", at);
  config.address = options.address.empty() ? at : HostAddress(options.address).str();
  config.rack = options.rack;
  if (!config.rack.empty()) store::group::check_label(config.rack, "a rack");
  config.key_file = absolute(variable("ONECOPY_STORE_KEY_FILE"));
  config.etcd.endpoints = options.endpoints;
  config.etcd.ca_file = absolute(options.ca_file);
  config.etcd.login_file = absolute(options.login_file);
  config.memory = fmt::format("{}/group-{}", state_directory(options.state), config.group);
  const store::group::Etcd check(config.etcd);           // throws
  const store::group::Remembered memory(config.memory);  // as well
  static_cast<void>(config.records());
  return config;
}

int list_hosts(const std::string& object) {
  store::Group group = cli::group();
  const std::vector<store::GroupHost> hosts = group.hosts(object);
  Table table({{"host"}, {"address"}, {"state"}, {escaped(object)}, {"size"}});
  for (const store::GroupHost& host : hosts) {
    const char* const state = !host.is_member ? "left" : host.is_present ? "here" : "away";
    const std::string version = !host.problem.empty() ? escaped(host.problem)
                                : host.version == 0
                                    ? "-"
                                    : fmt::format("{}{}", host.version, host.is_current ? "*" : "");
    table.add({host.name, host.address, state, version, host.bytes == 0 ? "" : format_bytes(host.bytes)});
  }
  fmt::print("{}", table.str(line_width()));
  if (const std::string problem = group.problem(); !problem.empty())
    fmt::print("This host changes nothing: {}\n", problem);
  return 0;
}

void add_group_commands(CLI::App& store, Command& command) {
  const auto host =
      std::make_shared<std::string>();  // owners: the parser, which fills it in, and the command
  auto* const leaving =
      store.add_subcommand("leave", "Make a host leave its group, so that publishers do not wait for it");
  leaving->add_option("HOST", *host, "The name of the host; default: this one");
  leaving->footer("Example, for a machine that is gone:\n  onecopy store leave node7");
  leaving->callback([&command, host] { command = [host] { return leave(*host); }; });
  auto* const groups = store.add_subcommand("group", "Repair the group of this host");
  groups->require_subcommand(1);
  auto* const restoring = groups->add_subcommand(
      "restore", "Write into etcd, which has lost its data, what the hosts of the group remember");
  restoring->footer(
      "Wait until all hosts say that etcd has lost changes (`onecopy doctor`), and run this on one of "
      "them.");
  restoring->callback([&command] { command = [] { return restore(); }; });
}

}  // namespace onecopy::cli
