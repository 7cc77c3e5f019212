// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "core/throw_error.h"
#include "device/janitor.h"
#include "output_format.h"
#include "text.h"

namespace onecopy::cli {
namespace {

void print_report(const CleanupReport& report) {
  if (report.files == 0) fmt::print("Nothing abandoned in {}.\n", shared_directory());
  else
    fmt::print("Removed {} from {}: {} of memory.\n", plural(report.files, "abandoned file"),
               shared_directory(), format_bytes(report.bytes));
  if (report.in_use != 0)
    fmt::print("Left alone: {} that some process uses (see onecopy ls).\n", plural(report.in_use, "file"));
}

int gc(OutputFormat format) {
  if (!std::filesystem::is_directory(shared_directory()))
    throw_error(ErrorCode::invalid_argument,
                "{} is not a directory; set ONECOPY_SHM_DIR to one, or unset it for /dev/shm",
                shared_directory());
  const CleanupReport report = remove_abandoned_files();
  if (format == OutputFormat::json)
    print_json({{"directory", shared_directory()},
                {"files", report.files},
                {"bytes", report.bytes},
                {"in_use", report.in_use}});
  else print_report(report);
  return 0;
}

}  // namespace

void add_gc(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand("gc", "Remove shared-memory files that killed processes left behind");
  auto format = add_format_option(*sub);
  sub->footer(
      "Only the strategy file_system makes files with names (in /dev/shm, or ONECOPY_SHM_DIR). Files that\n"
      "no process uses are removed. Every process also does this when it first allocates memory with\n"
      "onecopy, with any strategy. Memory in use is never touched, so this is safe at any time.\n"
      "\n"
      "Examples:\n  onecopy gc\n  ONECOPY_SHM_DIR=/mnt/shm onecopy gc --format json");
  sub->callback([&command, format] { command = [format] { return gc(*format); }; });
}

}  // namespace onecopy::cli
