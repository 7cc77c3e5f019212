// SPDX-License-Identifier: Apache-2.0
#include "prometheus.h"

#include <algorithm>
#include <chrono>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "output_format.h"
#include "share/format/info_text.h"
#include "store/format/kv_pool_metrics.h"
#include "store/group/config.h"

namespace onecopy::cli {
namespace {

std::string header(const std::string& metric, const char* type, const char* help) {
  return fmt::format("# HELP {} {}\n# TYPE {} {}\n", metric, help, metric, type);
}

std::string metric_name(const StatsField& field) {
  const bool has_suffix = !field.grows || std::string_view(field.name).ends_with("_total");
  return fmt::format("onecopy_{}{}", field.name, has_suffix ? "" : "_total");
}

/// Returns the labels of an owner. JSON and Prometheus quote names without control characters in the same way.
std::string labels(const OwnerInfo& owner) {
  return fmt::format("{{pid=\"{}\",process={}}}", owner.pid, json_text(escaped(owner.name), -1));
}

/// A number of each object of the store.
struct StoreMetric {
  const char* name;
  const char* help;
  std::uint64_t (*value)(const store::ObjectInfo&);
};

constexpr StoreMetric kStoreMetrics[] = {
    {"onecopy_store_current_version", "the number of the object's current version",
     [](const store::ObjectInfo& object) { return object.current; }},
    {"onecopy_store_versions", "versions of the object that the store keeps",
     [](const store::ObjectInfo& object) -> std::uint64_t { return sum_of(object).versions; }},
    {"onecopy_store_bytes", "bytes of these versions",
     [](const store::ObjectInfo& object) { return sum_of(object).bytes; }},
    {"onecopy_store_readers", "how often processes have one of these versions open",
     [](const store::ObjectInfo& object) {
       std::uint64_t readers = 0;
       for (const store::VersionInfo& version : object.versions) readers += version.readers;
       return readers;
     }},
};

/// Returns the numbers of the group of the keeper in that directory, and those that etcd knows if it answers.
std::string group_metrics(const std::string& home) {
  using store::group::Config;
  const auto group = home.empty() ? std::nullopt : Config::find(home);
  if (!group) return {};
  std::string text;
  const auto add = [&](const char* metric, const char* type, const char* help, auto value) {
    text +=
        header(metric, type, help) + fmt::format("{}{{group=\"{}\"}} {}\n", metric, group->group, value);
  };
  if (const auto age = Config::since_answer(home))
    add("onecopy_group_age_seconds", "gauge", "seconds since etcd last answered this host",
        std::chrono::duration<double>(*age).count());
  add("onecopy_group_stopped", "gauge",
      "1 if this host changes nothing in its group, also while etcd is away; else 0",
      group->problem.empty() ? 0 : 1);
  add("onecopy_group_pulled_bytes_total", "counter", "bytes that have come from other hosts",
      Config::pulled(home));
  try {
    store::group::Etcd etcd(group->etcd);
    const auto view = group->records().view(etcd);
    add("onecopy_group_members", "gauge", "the hosts that are members of the group", view.members.size());
    add("onecopy_group_missing_members", "gauge", "the members that do not reach etcd",
        std::ranges::count_if(view.members,
                              [&](const auto& one) { return !view.hosts.contains(one.first); }));
    if (!view.current.empty())
      text += header("onecopy_group_generation", "gauge",
                     "how often the current version of an object has changed in the group");
    for (const auto& [name, current] : view.current)
      text += fmt::format("onecopy_group_generation{{group=\"{}\",object={}}} {}\n", group->group,
                          json_text(escaped(name), -1), current.value.generation);
  } catch (const Error& error) {
    log_debug(error.what());  // the age says it
  }
  return text;
}

}  // namespace

std::string prometheus_text(const std::vector<ListedOwner>& owners, std::size_t silent,
                            const std::string& version) {
  std::string text =
      header("onecopy_build_info", "gauge", "the version of the command that wrote this file") +
      fmt::format("onecopy_build_info{{version={}}} 1\n", json_text(version, -1));
  for (const StatsField& field : kStatsFields) {
    if (owners.empty()) break;
    text += header(metric_name(field), field.grows ? "counter" : "gauge", field.help);
    for (const ListedOwner& owner : owners)
      text +=
          fmt::format("{}{} {}\n", metric_name(field), labels(owner.info), owner.info.stats.*field.value);
  }
  return text +
         header("onecopy_silent_processes", "gauge", "processes that did not answer within two seconds") +
         fmt::format("onecopy_silent_processes {}\n", silent);
}

std::string prometheus_text(const StoreState& state) {
  std::string text =
      header("onecopy_store_up", "gauge", "1 if the store has a keeper that answers, else 0") +
      fmt::format("onecopy_store_up {}\n", state.keeper ? 1 : 0);
  if (state.max_bytes)
    text += header("onecopy_store_max_bytes", "gauge", "max bytes of all versions, +Inf without a limit") +
            fmt::format("onecopy_store_max_bytes {}\n",
                        *state.max_bytes == UINT64_MAX ? "+Inf" : std::to_string(*state.max_bytes));
  for (const StoreMetric& metric : kStoreMetrics) {
    if (state.objects.empty()) break;
    text += header(metric.name, "gauge", metric.help);
    for (const store::ObjectInfo& object : state.objects)
      text += fmt::format("{}{{object={}}} {}\n", metric.name, json_text(escaped(object.name), -1),
                          metric.value(object));
  }
  for (const store::KvPoolMetric& metric : store::kKvPoolMetrics) {
    if (state.kv_pools.empty()) break;
    const std::string full = fmt::format("onecopy_kv_pool_{}{}", metric.name, metric.grows ? "_total" : "");
    text += header(full, metric.grows ? "counter" : "gauge", metric.help);
    for (const auto& [name, namespaces] : state.kv_pools)
      for (std::size_t i = 0; i < namespaces.size(); ++i)
        text += fmt::format("{}{{object={},namespace=\"{}\"}} {}\n", full, json_text(escaped(name), -1), i,
                            namespaces[i].*metric.value);
  }
  return text + group_metrics(state.home);
}

}  // namespace onecopy::cli
