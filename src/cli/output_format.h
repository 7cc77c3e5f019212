// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace CLI {
class App;
}

namespace onecopy::cli {

enum class OutputFormat { table, json, prometheus };

/// Adds `--format table|json`, and `|prometheus` if asked for, and `--json`. Returns the value, shared by the option, which sets it,
/// and the command that reads it.
std::shared_ptr<OutputFormat> add_format_option(CLI::App& command, bool with_prometheus = false);

/// Returns JSON indented by `indent`, or in one line for -1. Bytes that are not UTF-8 (in names of processes) are
/// replaced.
std::string json_text(const nlohmann::json& value, int indent);
/// Prints json_text(value, 2) to stdout.
void print_json(const nlohmann::json& value);

}  // namespace onecopy::cli
