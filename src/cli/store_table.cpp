// SPDX-License-Identifier: Apache-2.0
#include "store_table.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/throw_error.h"
#include "keeper_processes.h"
#include "os/cgroup_owner.h"
#include "store/client/kv_pool_files.h"
#include "store/client/kv_pool_lock.h"
#include "store/format/kv_pool_metrics.h"
#include "store/format/link.h"
#include "text.h"

namespace onecopy::cli {
namespace {

using store::KvPoolStats;

nlohmann::json json_of(const std::vector<KvPoolStats>& namespaces) {
  nlohmann::json all = nlohmann::json::array();
  for (const KvPoolStats& one : namespaces) {
    nlohmann::json numbers;
    for (const auto& metric : store::kKvPoolMetrics) numbers[metric.name] = one.*metric.value;
    all.push_back(numbers);
  }
  return all;
}

/// Returns the namespaces of each KV pool. One that was deleted meanwhile is left out.
std::map<std::string, std::vector<KvPoolStats>> kv_pools_of(store::Store& store,
                                                            const std::vector<store::ObjectInfo>& objects) {
  std::map<std::string, std::vector<KvPoolStats>> all;
  for (const store::ObjectInfo& object : objects) try {
      if (object.is_kv_pool) all[object.name] = store.kv_pool_stats(object.name);
    } catch (const Error&) {
      continue;
    }
  return all;
}

nlohmann::json json_of(const store::ObjectInfo& object) {
  nlohmann::json versions = nlohmann::json::array();
  for (const auto& v : object.versions)
    versions.push_back({{"version", v.number},
                        {"bytes", v.bytes},
                        {"device", v.device},
                        {"readers", v.readers},
                        {"unkept", v.unkept},
                        {"publisher", v.publisher},
                        {"awaited", v.is_awaited},
                        {"made_at", static_cast<double>(v.made_at) * 1e-9}});
  return {{"name", object.name},
          {"current", object.current},
          {"is_kv_pool", object.is_kv_pool},
          {"versions", versions}};
}

/// Returns the log in the keeper's directory, if the keeper writes it.
std::string log_of(const StoreState& state) {
  std::error_code error;
  const std::string log = store::StoreDirectory(state.home).log();
  return std::filesystem::equivalent(fmt::format("/proc/{}/fd/2", state.keeper->worker), log, error) ? log
                                                                                                     : "";
}

/// Returns the number of readers, and of those that cannot give the version back: "3, 1 unkept".
std::string readers_of(const store::VersionInfo& version) {
  if (version.is_awaited) return "awaited";
  return version.unkept == 0 ? std::to_string(version.readers)
                             : fmt::format("{}, {} unkept", version.readers, version.unkept);
}

/// Returns how long ago a version was published: "12 min".
std::string age_of(const store::VersionInfo& version) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return format_age(now - std::chrono::nanoseconds(version.made_at));
}

bool is_of(const std::string& name, const std::pair<const std::string, std::uint64_t>& files) {
  return files.first.ends_with(store::kv_pool_path("", name));
}

/// Returns what KV pools with outlives_keeper have left, except those that the keeper has.
std::map<std::string, std::uint64_t> kept_files(const StoreState& state,
                                                const store::StoreDirectories& directories) {
  std::map<std::string, std::uint64_t> kept;
  for (const store::StoreDirectory& directory : directories.all())
    kept.merge(store::KvPoolFiles::all(directory.path()));
  for (const store::ObjectInfo& object : state.objects)
    std::erase_if(kept, [&](const auto& pool) { return is_of(object.name, pool); });
  return kept;
}

[[noreturn]] void throw_no_answer(const store::StoreDirectories& directories,
                                  std::chrono::seconds patience) {
  std::vector<int> pids;
  for (const KeeperProcess& process : keeper_processes(directories)) pids.push_back(process.pid);
  throw_error(ErrorCode::timeout,
              "the store's keeper has not answered for {} s ({}); if it is stopped (SIGSTOP, a debugger), "
              "`kill -CONT` continues it; `onecopy store stop --force` kills it",
              patience.count(),
              pids.empty() ? "in another container" : fmt::format("pids {}", fmt::join(pids, ", ")));
}

}  // namespace

StoreState store_state(std::chrono::seconds patience) {
  const auto directories = store::StoreDirectories::of_this_user();
  StoreState state;
  try {
    state.home = store::Link::connect(directories, Deadline::after(patience)).home();
    store::Store store = store::Store::connect({.autostart = false});
    state.keeper = store.keeper();
    state.ends_with = what_ends(state.keeper->worker);
    state.log = log_of(state);
    if (const auto limits = store::ask_limits(directories, Deadline::after(patience)))
      state.max_bytes = limits->bytes;
    state.objects = store.list();
    state.kv_pools = kv_pools_of(store, state.objects);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timeout) throw_no_answer(directories, patience);
    if (error.code() != ErrorCode::peer_died) throw;
    directories.check();
    state = {};
  }
  state.kept_files = kept_files(state, directories);
  return state;
}

StoreState poll_store() {
  StoreState state;
  try {
    return store_state(std::chrono::seconds(2));
  } catch (const Error& error) {
    state.problem = error.what();
  }
  return state;
}

bool StoreState::has_kept(const std::string& name) const {
  return std::any_of(kept_files.begin(), kept_files.end(),
                     [&](const auto& files) { return is_of(name, files); });
}

std::string kept_lines(const StoreState& state) {
  std::string lines;
  for (const auto& [path, bytes] : state.kept_files)
    lines += fmt::format(
        "A KV pool that has outlived its keeper ({}) waits for a program that opens it. To delete it: rm "
        "{}.*\n",
        format_bytes(bytes), escaped(path));
  return lines;
}

nlohmann::json json_of_kept(const StoreState& state) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [path, bytes] : state.kept_files) rows.push_back({{"path", path}, {"bytes", bytes}});
  return rows;
}

std::string keeper_line(const StoreState& state) {
  if (!state.keeper) return "The store has no keeper.\n";
  return fmt::format("The store's keeper listens in {} (worker {}, guard {}){}.\n", escaped(state.home),
                     state.keeper->worker, state.keeper->guard,
                     state.ends_with.empty() ? "" : fmt::format(", and ends with {}", state.ends_with)) +
         (state.log.empty() ? "" : fmt::format("Its log is {}.\n", escaped(state.log)));
}

Fates fates(const StoreState& state) {
  Fates all;
  for (const store::ObjectInfo& object : state.objects)
    for (const store::VersionInfo& version : object.versions) {
      if (version.is_awaited) continue;
      const bool has_files = object.is_kv_pool && store::KvPoolFiles::exist(state.home, object.name);
      (has_files ? all.files : version.readers != 0 ? all.open : all.lost).add(version);
    }
  return all;
}

std::string VersionSum::str() const {
  return fmt::format("{}, {}", plural(versions, "version"), format_bytes(bytes));
}

VersionSum sum_of(const store::ObjectInfo& object, bool awaited) {
  VersionSum sum;
  for (const store::VersionInfo& version : object.versions)
    if (version.is_awaited == awaited) sum.add(version);
  return sum;
}

std::string sum_lines(const StoreState& state) {
  std::size_t objects = 0;
  VersionSum here, awaited;
  for (const store::ObjectInfo& object : state.objects) {
    const auto add = [](VersionSum& sum, const VersionSum& more) {
      sum.versions += more.versions;
      sum.bytes += more.bytes;
      return more.versions != 0;
    };
    if (add(here, sum_of(object))) ++objects;
    add(awaited, sum_of(object, true));
  }
  const std::uint64_t max = state.max_bytes.value_or(UINT64_MAX);
  std::string line = fmt::format("{}, {}{}\n", plural(objects, "object"), here.str(),
                                 max == UINT64_MAX ? "" : fmt::format(" of max {}", format_bytes(max)));
  if (awaited.versions == 0) return line;
  return line + fmt::format("Of the last keeper: {}. Processes that have them open may give them back.\n",
                            awaited.str());
}

std::string store_table(const std::vector<store::ObjectInfo>& objects, std::size_t width) {
  Table table({{"OBJECT", Align::left, true},
               {"VERSION", Align::right},
               {"SIZE", Align::right},
               {"DEVICE"},
               {"READERS", Align::right},
               {"AGE", Align::right}});
  for (const auto& object : objects)
    for (const auto& v : object.versions)
      table.add({escaped(object.name),
                 object.is_kv_pool ? "kv_pool"
                                   : fmt::format("{}{}", v.number, v.number == object.current ? "*" : " "),
                 format_bytes(v.bytes), v.device, readers_of(v), age_of(v)});
  return table.str(width);
}

nlohmann::json json_of(const StoreState& state) {
  nlohmann::json keeper, objects = nlohmann::json::array();
  if (state.keeper)
    keeper = {{"worker", state.keeper->worker},
              {"guard", state.keeper->guard},
              {"directory", state.home},
              {"ends_with", state.ends_with},
              {"log", state.log}};
  if (state.max_bytes && *state.max_bytes != UINT64_MAX) keeper["max_bytes"] = *state.max_bytes;
  for (const auto& object : state.objects) {
    objects.push_back(json_of(object));
    if (const auto pool = state.kv_pools.find(object.name); pool != state.kv_pools.end())
      objects.back()["namespaces"] = json_of(pool->second);
  }
  return {{"keeper", keeper},
          {"problem", state.problem},
          {"objects", objects},
          {"kept_kv_pools", json_of_kept(state)}};
}

}  // namespace onecopy::cli
