// SPDX-License-Identifier: Apache-2.0

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "ferry_process.h"
#include "keeper_processes.h"
#include "onecopy/core/error.h"
#include "onecopy/store/group.h"
#include "output_format.h"
#include "store/keeper/keeper.h"
#include "store_group.h"
#include "store_table.h"
#include "supervise.h"
#include "text.h"

namespace onecopy::cli {
namespace {

struct KeeperOptions {
  store::ServeOptions serve;
  std::vector<std::string> max_device_bytes;
  std::uint64_t max_age = 0, max_unused = 0;  ///< seconds
  bool force = false;
  std::string listen;
  std::uint64_t rate = 0;  ///< bytes per second
  GroupOptions group;
};
using SharedKeeperOptions =
    std::shared_ptr<KeeperOptions>;  // owners: the parser, which fills it in, and the command

store::ServeOptions serve_options(const KeeperOptions& options) {
  store::ServeOptions serve = options.serve;
  for (const std::string& limit : options.max_device_bytes) {
    const std::size_t equals = limit.find('=');
    std::string bytes = equals == std::string::npos ? "" : limit.substr(equals + 1);
    const std::string wrong = CLI::AsSizeValue(false)(bytes);
    if (bytes.empty() || !wrong.empty())
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("--max-device-bytes takes a device and a size, such as cuda:0=40GiB, not {}", limit));
    serve.limits.devices[Device::parse(limit.substr(0, equals)).str()] = std::stoull(bytes);
  }
  if (options.max_age != 0) serve.limits.age = std::chrono::seconds(options.max_age);
  if (options.max_unused != 0) serve.limits.unused = std::chrono::seconds(options.max_unused);
  return serve;
}

/// Returns whether a keeper runs that does what the options ask for. Otherwise the keeper is to be one of this command.
bool has_keeper(const store::ServeOptions& serve) {
  if (serve.replace || serve.limits != store::Limits()) return false;
  try {
    store::Store::connect({.autostart = false});
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_died) throw;
    return false;
  }
}

int run_keeper(const KeeperOptions& options) {
  const store::ServeOptions serve = serve_options(options);
  std::optional<FerryProcess> ferry;
  const auto run = [&] {
    if (ferry) ferry->leave();
    store::serve(store::StoreDirectories::of_this_user(), serve);
  };
  if (serve.in_background) {
    run();
    return 0;
  }
  if (!options.listen.empty()) ferry.emplace(options.listen, options.rate, options.group);
  if (!ferry) return supervise(run, nullptr);
  if (!has_keeper(serve)) {
    const int status = supervise(run, &*ferry);
    // Another process may have started a keeper meanwhile.
    if (status == 0 || !has_keeper(serve)) return status;
  }
  ferry->wait();
  return 0;
}

int say_status(OutputFormat format) {
  const StoreState state = store_state();
  if (format == OutputFormat::json) {
    print_json(json_of(state));
  } else {
    fmt::print("{}{}", keeper_line(state), state.keeper ? sum_lines(state) : "");
  }
  return state.keeper ? 0 : 1;
}

/// Ends a keeper that cannot be asked to end: one that is stopped, or of another version of onecopy.
int end_by_force() {
  const auto directories = store::StoreDirectories::of_this_user();
  const std::uint64_t bytes = held_bytes(keeper_processes(directories));
  std::vector<int> pids;
  for (const KeeperProcess& process : kill_keeper(directories)) pids.push_back(process.pid);
  if (pids.empty()) throw Error(ErrorCode::peer_died, "the store has no keeper");
  fmt::print("The keeper was killed (pids {}). It held {}; what no process has open is lost.\n",
             fmt::join(pids, ", "), format_bytes(bytes));
  return 0;
}

/// Ends the keeper, and says what happens to the versions that it held.
int end_in_order() {
  const Fates what = fates(store_state());
  store::Group(store::Store::connect({.autostart = false})).stop();
  fmt::print("The keeper has ended.\n");
  if (what.lost.versions != 0) fmt::print("Lost: {}\n", what.lost.str());
  if (what.open.versions != 0)
    fmt::print("Kept by the processes that have them open: {}\n", what.open.str());
  if (what.files.versions != 0) fmt::print("Kept in files: {}\n", what.files.str());
  return 0;
}

int stop_keeper(const KeeperOptions& options) {
  try {
    return end_in_order();
  } catch (const Error& error) {
    if (options.force) return end_by_force();
    if (error.code() == ErrorCode::peer_died) throw Error(ErrorCode::peer_died, "the store has no keeper");
    throw;
  }
}

CLI::App* add_keeper_command(CLI::App& store, const char* name, const char* what, Command& command,
                             const SharedKeeperOptions& options, int (*run)(const KeeperOptions&)) {
  auto* const sub = store.add_subcommand(name, what);
  sub->callback([&command, options, run] { command = [options, run] { return run(*options); }; });
  return sub;
}

void add_hosts_options(CLI::App& serve, const SharedKeeperOptions& options, CLI::Option* background) {
  auto* const listen = serve.add_option(
      "--listen", options->listen,
      "Also give versions to other hosts, at this address of this host; a keeper that runs is used, and "
      "stays when this command ends");
  listen->type_name("HOST:PORT")->excludes(background);
  serve.add_option("--rate", options->rate, "Max bytes per second to all other hosts together")
      ->needs(listen)
      ->transform(CLI::AsSizeValue(false))
      ->type_name("BYTES");
  add_group_options(serve, options->group);
}

void add_serve(CLI::App& store, Command& command, const SharedKeeperOptions& options) {
  auto* const sub = add_keeper_command(store, "serve", "Run the keeper, and end when it ends", command,
                                       options, &run_keeper);
  auto& limits = options->serve.limits;
  for (const auto& [flag, limit, what] :
       {std::tuple("--max-bytes", &limits.bytes, "Max size of all versions together"),
        std::tuple("--max-client-bytes", &limits.client_bytes, "Max size of the versions of one process")})
    sub->add_option(flag, *limit, what)->transform(CLI::AsSizeValue(false))->type_name("BYTES");
  sub->add_option("--max-device-bytes", options->max_device_bytes,
                  "Max size of the versions on a device; can be repeated")
      ->type_name("DEVICE=BYTES");
  sub->add_option("--max-age", options->max_age,
                  "Drop versions of this age that are not current and that no process reads")
      ->type_name("SECONDS");
  sub->add_option(
         "--max-unused", options->max_unused,
         "End when no version and no user has been there for this long; without it the keeper stays")
      ->check(CLI::PositiveNumber)
      ->type_name("SECONDS");
  sub->add_flag("--replace", options->serve.replace,
                "Replace the running keeper, if there is one; its versions, readers and limits stay");
  auto* const background = sub->add_flag(
      "--background", options->serve.in_background,
      "Return as soon as the keeper answers, and leave it running, with a log in its directory");
  add_hosts_options(*sub, options, background);
  sub->footer(
      "The command stays as long as the keeper: if one of the keeper's two processes is killed, the other\n"
      "one replaces it. SIGTERM, SIGHUP and Ctrl-C end the keeper; versions that no process has open are\n"
      "lost then. On a terminal, the first Ctrl-C says what would be lost.\n"
      "\n"
      "Example, for a supervisor (systemd, Docker, supervisord):\n"
      "  onecopy store serve --replace --max-bytes 64GiB\n"
      "Example, for hosts that know the key and pull from this one:\n"
      "  ONECOPY_STORE_KEY_FILE=~/store.key onecopy store serve --listen 0.0.0.0:7000\n"
      "Example, for hosts that all show the same versions, which etcd knows:\n"
      "  onecopy store serve --listen 10.0.0.2:7000 --group prod --etcd http://10.0.0.1:2379\n"
      "\n"
      "Exit status: 0 the keeper was told to end, or replaced; 1 it did not start, for example because "
      "there\n"
      "is a keeper and --replace is missing; 137 it was killed.");
}

}  // namespace

void add_keeper_commands(CLI::App& store, Command& command) {
  const auto options = std::make_shared<KeeperOptions>();
  add_serve(store, command, options);
  auto* const about = store.add_subcommand("status", "Say whether there is a keeper, and what it holds");
  const auto format = add_format_option(*about);
  about->footer(
      "Example:\n  onecopy store status\n\n"
      "Exit status: 0 if a keeper answers, 1 if there is none or it does not answer.");
  about->callback([&command, format] { command = [format] { return say_status(*format); }; });
  auto* const end = add_keeper_command(
      store, "stop", "End the keeper, and leave the group; what no process has open is gone", command,
      options, &stop_keeper);
  end->footer("Example:\n  onecopy store stop");
  end->add_flag("--force", options->force,
                "Kill the processes of a keeper that does not answer, or of another version of onecopy");
}

}  // namespace onecopy::cli
