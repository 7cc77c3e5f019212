// SPDX-License-Identifier: Apache-2.0
#include "prometheus.h"

#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "output_format.h"
#include "share/format/info_text.h"

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

}  // namespace

std::string prometheus_text(const std::vector<ListedOwner>& owners, std::size_t silent) {
  std::string text;
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

}  // namespace onecopy::cli
