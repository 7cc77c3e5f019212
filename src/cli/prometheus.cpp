// SPDX-License-Identifier: Apache-2.0
#include "prometheus.h"

#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "output_format.h"
#include "share/format/info_text.h"

namespace onecopy::cli {
namespace {

/// The numbers that only grow. All others can also shrink.
const std::set<std::string_view> kCounters{
    "shared_total", "opened_total",    "host_waits",     "direct_copies", "staged_copies",
    "staged_bytes", "pageable_copies", "pageable_bytes", "cut_copies",    "late_releases",
};

std::string header(const std::string& metric, bool is_counter) {
  return fmt::format("# TYPE {} {}\n", metric, is_counter ? "counter" : "gauge");
}

std::string metric_name(const std::string& number) {
  const bool is_counted = kCounters.contains(number) && !number.ends_with("_total");
  return fmt::format("onecopy_{}{}", number, is_counted ? "_total" : "");
}

/// Returns the labels of an owner. JSON and Prometheus quote names without control characters in the same way.
std::string labels(const OwnerInfo& owner) {
  return fmt::format("{{pid=\"{}\",process={}}}", owner.pid, json_text(escaped(owner.name), -1));
}

}  // namespace

std::string prometheus_text(const std::vector<ListedOwner>& owners, std::size_t silent) {
  // The rows by the name of the number, because all rows of a metric must be together.
  std::map<std::string, std::string> rows;
  for (const ListedOwner& owner : owners) {
    const nlohmann::json stats = nlohmann::json::parse(to_json(owner.info)).at("stats");
    for (const auto& [number, value] : stats.items())
      rows[number] += fmt::format("{}{} {}\n", metric_name(number), labels(owner.info), value.dump());
  }
  std::string text;
  for (const auto& [number, lines] : rows)
    text += header(metric_name(number), kCounters.contains(number)) + lines;
  return text + header("onecopy_silent_processes", false) +
         fmt::format("onecopy_silent_processes {}\n", silent);
}

}  // namespace onecopy::cli
