// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands.h"
#include "onecopy/core/error.h"
#include "os/deadline.h"
#include "store/ferry/host_key.h"
#include "store/ferry/pull.h"
#include "text.h"

namespace onecopy::cli {
namespace {

using std::chrono::steady_clock;

struct PullRequest {
  std::string from, name;
  std::vector<std::string> also;
  std::uint64_t version = 0;
  double timeout = 30;
  bool follow = false;
};

store::ferry::PullOptions options_of(const PullRequest& request) {
  store::ferry::PullOptions options;
  options.sources.emplace_back(request.from);
  for (const std::string& also : request.also) options.sources.emplace_back(also);
  options.name = request.name;
  options.number = request.version;
  options.keys = store::ferry::store_keys();
  options.keeper = {true, "/proc/self/exe"};
  return options;
}

void say(const PullRequest& request, const store::ferry::Pulled& pulled, steady_clock::duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  if (!pulled.is_new)
    fmt::print("{} version {} is the current one again\n", escaped(request.name), pulled.number);
  else
    fmt::print("{} version {}: {}, {} of them received in {:.2f} s ({:.0f} MB/s)\n", escaped(request.name),
               pulled.number, format_bytes(pulled.bytes), format_bytes(pulled.taken), seconds,
               static_cast<double>(pulled.taken) / 1e6 / std::max(seconds, 1e-9));
  flush_output();
}

int pull(const PullRequest& request) {
  constexpr std::chrono::milliseconds kWait{5'000};
  store::ferry::Pull from(options_of(request));
  const store::ferry::Pull::Retries retries{
      request.follow, (request.follow ? kForever : Deadline::after_seconds(request.timeout)).left(),
      [](const Error& error) { fmt::print(stderr, "onecopy: {}; trying again\n", error.what()); }};
  do {
    const auto begin = steady_clock::now();
    const auto pulled = from.next(request.follow ? kWait : std::chrono::milliseconds{0}, retries);
    if (pulled) say(request, *pulled, steady_clock::now() - begin);
    else if (!request.follow) fmt::print("{} is here already\n", escaped(request.name));
  } while (request.follow);
  return 0;
}

}  // namespace

void add_store_pull(CLI::App& store, Command& command) {
  const auto request =
      std::make_shared<PullRequest>();  // owners: the parser, which fills it in, and the command
  auto* const sub =
      store.add_subcommand("pull", "Bring a version from another host into the store of this one");
  sub->add_option("ADDRESS", request->from, "HOST:PORT of `onecopy store serve --listen` on the other host")
      ->required();
  sub->add_option("NAME", request->name, "The name of the object")->required();
  auto* const version =
      sub->add_option("--version", request->version, "The number of the version; default: the newest");
  sub->add_option("--also", request->also,
                  "Another host that has the object, in case that one is slow or away; can be repeated")
      ->type_name("HOST:PORT");
  sub->add_flag("--follow", request->follow, "Stay, and bring each version that becomes current there")
      ->excludes(version);
  sub->add_option("--timeout", request->timeout, "Without --follow: how long the other host may be away")
      ->capture_default_str()
      ->type_name("SECONDS");
  sub->footer(
      "Both hosts need the same secret in the file that ONECOPY_STORE_KEY_FILE names (`onecopy key` prints "
      "one).\n"
      "The version becomes current here once all of it has arrived. If the command is interrupted, the "
      "keeper\n"
      "holds what has arrived for ten minutes, and the next pull of the object takes only what is "
      "missing.\n"
      "\n"
      "Examples:\n"
      "  onecopy store pull 10.0.0.1:7000 llama\n"
      "  onecopy store pull trainer:7000 llama --follow --also 10.0.0.2:7000");
  sub->callback([&command, request] { command = [request] { return pull(*request); }; });
}

}  // namespace onecopy::cli
