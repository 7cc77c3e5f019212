// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace CLI {
class App;
}

namespace onecopy::cli {

enum class OutputFormat { table, json };

/// Adds `--format table|json`. Shared by the option, which fills it in, and the command that reads it.
std::shared_ptr<OutputFormat> add_format_option(CLI::App& command);

/// Indented by `indent`, or one line for -1. Text that is not UTF-8 (names of processes) has its odd bytes replaced.
std::string json_text(const nlohmann::json& value, int indent);
/// json_text(value, 2) on stdout.
void print_json(const nlohmann::json& value);

}  // namespace onecopy::cli
