// SPDX-License-Identifier: Apache-2.0
#include "onecopy/store/store.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "interrupts.h"
#include "load_file.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "os/deadline.h"
#include "output_format.h"
#include "store_group.h"
#include "store_table.h"
#include "text.h"

namespace onecopy::cli {
namespace {

struct StoreOptions {
  std::string name;
  std::string path;
  std::uint64_t version = 0;
  std::uint32_t keep = 2;  ///< the option of put
  std::uint32_t left = 0;  ///< the option of rm
  bool is_everywhere = false;
  std::size_t hosts = 0;  ///< of put --hosts; 0: all
  double timeout = 60;
  std::string hosts_of;  ///< the object of ls --hosts
};
using Options = std::shared_ptr<StoreOptions>;  // owners: the parser, which fills it in, and the command

store::Store connect(bool autostart = false) {
  return store::Store::connect({autostart, "/proc/self/exe"});
}

/// Reads the file first, so that a file that cannot be read costs the store nothing.
int put(const StoreOptions& options) {
  Interrupts interrupts;
  const LoadedFile loaded = load_file(options.path, "loading", interrupts);
  store::PublishOptions publish;
  publish.keep = options.keep;
  publish.attributes["source"] = options.path;
  const auto number = options.is_everywhere || options.hosts != 0
                          ? store::Group(connect()).publish(
                                options.name, loaded.tensors, publish,
                                {options.hosts, Deadline::after_seconds(options.timeout).left()})
                          : connect(true).publish(options.name, loaded.tensors, publish);
  fmt::print("{} version {}: {}, {}\n", escaped(options.name), number,
             plural(loaded.tensors.size(), "tensor"), format_bytes(loaded.bytes));
  return 0;
}

int list(OutputFormat format) {
  const StoreState state = store_state();
  if (format == OutputFormat::json) print_json(json_of(state));
  else if (!state.keeper) fmt::print("{}", keeper_line(state));
  else
    fmt::print("{}",
               state.objects.empty() ? "The store is empty.\n" : store_table(state.objects, line_width()));
  return 0;
}

int watch(const StoreOptions& options) {
  Interrupts interrupts;
  store::Watch changes = connect(true).watch(options.name);
  while (!interrupts.pending()) {
    const auto number = changes.next(std::chrono::milliseconds(200));
    if (!number) continue;
    fmt::print("{} version {}\n", escaped(options.name), *number);
    flush_output();
  }
  return 0;
}

int rollback(const StoreOptions& options) {
  if (store::Group group(connect()); group.has(options.name)) group.rollback(options.name, options.version);
  else connect().rollback(options.name, options.version);
  fmt::print("{} version {} is the current one\n", escaped(options.name), options.version);
  return 0;
}

std::size_t versions_of(store::Store& store, const std::string& name) {
  const auto objects = store.list();
  const auto at = std::ranges::find(objects, name, &store::ObjectInfo::name);
  return at == objects.end() ? 0 : at->versions.size();
}

int remove(const StoreOptions& options) {
  store::Store store = connect();
  const std::size_t before = versions_of(store, options.name);
  if (before == 0 && store_state().has_kept(options.name)) {
    store.remove(options.name);
    fmt::print("{}: the files of the KV pool were removed\n", escaped(options.name));
    return 0;
  }
  if (before == 0) store.open(options.name);  // throws: there is no such object
  if (store::Group group(store); !group.has(options.name)) store.remove(options.name, options.left);
  else if (options.left == 0) group.remove(options.name);
  else
    throw Error(ErrorCode::invalid_argument,
                "--keep is for objects of one host; each host keeps as many as put said");
  const std::size_t after = versions_of(store, options.name);
  fmt::print("{}: {} removed, {} left\n", escaped(options.name),
             plural(before - std::min(before, after), "version"), after);
  return 0;
}

/// Adds a subcommand. `example`: what its help shows.
CLI::App* add(CLI::App& store, const char* name, const char* what, const char* example, Command& command,
              const Options& options, int (*run)(const StoreOptions&)) {
  auto* const sub = store.add_subcommand(name, what);
  sub->footer(fmt::format("Example:\n  onecopy store {} {}", name, example));
  sub->callback([&command, options, run] { command = [options, run] { return run(*options); }; });
  return sub;
}

void add_name(CLI::App& sub, const Options& options) {
  sub.add_option("NAME", options->name, "The name of the object")->required();
}

void add_everywhere(CLI::App& put, const Options& options) {
  put.add_flag("--everywhere", options->is_everywhere,
               "Publish in the group of this host: the version becomes current when all members have it");
  put.add_option("--hosts", options->hosts,
                 "As --everywhere, when so many hosts have it; the others catch up")
      ->check(CLI::PositiveNumber);
  put.add_option("--timeout", options->timeout, "With --everywhere or --hosts: the time for that")
      ->capture_default_str()
      ->type_name("SECONDS");
}

void add_changes(CLI::App& store, Command& command, const Options& options) {
  auto* const put_files = add(store, "put", "Publish the tensors of a safetensors or npy file",
                              "llama Llama-3-8B/ --keep 3", command, options, &put);
  add_name(*put_files, options);
  put_files->add_option("FILE", options->path, "A .safetensors or .npy file, or a directory of the former")
      ->required();
  put_files->add_option("--keep", options->keep, "Number of versions to keep, including the new one")
      ->capture_default_str()
      ->check([](const std::string& text) {
        return text.find_first_not_of('0') == std::string::npos
                   ? "--keep is 0, and the new version itself counts; give 1 and more"
                   : "";
      });
  add_everywhere(*put_files, options);
  auto* const back = add(store, "rollback", "Make an earlier version the current one again", "llama 3",
                         command, options, &rollback);
  add_name(*back, options);
  back->add_option("VERSION", options->version, "The number of the version")->required();
  auto* const rm = add(store, "rm", "Remove an object", "llama --keep 1", command, options, &remove);
  add_name(*rm, options);
  rm->add_option("--keep", options->left,
                 "Number of versions to keep: those that were current most recently");
}

}  // namespace

void add_store(CLI::App& app, Command& command) {
  auto* const store =
      app.add_subcommand("store", "Keep weights under a name, also when every process has ended");
  store->require_subcommand(1);
  const auto options = std::make_shared<StoreOptions>();
  add_keeper_commands(*store, command);
  add_changes(*store, command, options);
  add_store_pull(*store, command);
  add_group_commands(*store, command);
  auto* const ls =
      store->add_subcommand("ls", "List objects, versions and readers; * marks the current version");
  const auto format = add_format_option(*ls);
  ls->footer("Example:\n  onecopy store ls --format json | jq '.objects[].name'");
  ls->add_option("--hosts", options->hosts_of, "What the hosts of the group have of an object")
      ->type_name("NAME");
  ls->callback([&command, format, options] {
    command = [format, options] {
      return options->hosts_of.empty() ? list(*format) : list_hosts(options->hosts_of);
    };
  });
  add_name(*add(*store, "watch", "Print each version that becomes the current one", "llama", command,
                options, &watch),
           options);
  store->footer(
      "The keeper is two small processes that replace each other. Programs start it when they need it\n"
      "(ONECOPY_STORE_AUTOSTART=0 turns that off); such a keeper ends when it has been empty and unused\n"
      "for ten minutes, and one that `onecopy store serve` starts stays.\n"
      "A version beyond a limit is refused, once old versions that no process reads are gone.\n"
      "\n"
      "Examples:\n"
      "  onecopy store put llama Llama-3-8B/     publish a checkpoint\n"
      "  onecopy store ls                        what there is, and who reads it\n"
      "  onecopy store rollback llama 3          go back to version 3\n"
      "  onecopy store status                    0 if there is a keeper, 1 if there is none");
}

}  // namespace onecopy::cli
