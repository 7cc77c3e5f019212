// SPDX-License-Identifier: Apache-2.0
#include "output_format.h"

#include <map>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace onecopy::cli {

std::shared_ptr<OutputFormat> add_format_option(CLI::App& command, bool with_prometheus) {
  auto format = std::make_shared<OutputFormat>(OutputFormat::table);
  std::map<std::string, OutputFormat> words{{"table", OutputFormat::table}, {"json", OutputFormat::json}};
  if (with_prometheus) words["prometheus"] = OutputFormat::prometheus;
  command
      .add_option_function<std::string>(
          "--format", [format, words](const std::string& word) { *format = words.at(word); },
          with_prometheus ? "For people (table) or for programs (json, prometheus)"
                          : "For people (table) or for programs (json)")
      ->check(CLI::IsMember(words))
      ->default_str("table");
  command.add_flag_callback(
      "--json", [format] { *format = OutputFormat::json; }, "The same as --format json");
  return format;
}

std::string json_text(const nlohmann::json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

void print_json(const nlohmann::json& value) { fmt::print("{}\n", json_text(value, 2)); }

}  // namespace onecopy::cli
