// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "core/throw_error.h"
#include "device/janitor.h"
#include "output_format.h"
#include "store_table.h"
#include "text.h"

namespace onecopy::cli {
namespace {

void print_report(const CleanupReport& report, const StoreState& state) {
  if (report.files == 0) fmt::print("Nothing abandoned in {}.\n", shared_directory());
  else
    fmt::print("Removed {} from {}: {} of memory.\n", plural(report.files, "abandoned file"),
               shared_directory(), format_bytes(report.bytes));
  if (report.in_use != 0)
    fmt::print("Left alone: {} that some process uses (see onecopy ls).\n", plural(report.in_use, "file"));
  fmt::print("{}", kept_lines(state));
  if (!state.problem.empty()) fmt::print("KV pools are not listed: {}\n", escaped(state.problem));
}

int gc(OutputFormat format) {
  if (!std::filesystem::is_directory(shared_directory()))
    throw_error(ErrorCode::invalid_argument,
                "{} is not a directory; set ONECOPY_SHM_DIR to one, or unset it for /dev/shm",
                shared_directory());
  const CleanupReport report = remove_abandoned_files();
  const StoreState state = poll_store();
  if (format == OutputFormat::json)
    print_json({{"directory", shared_directory()},
                {"files", report.files},
                {"bytes", report.bytes},
                {"in_use", report.in_use},
                {"kept_kv_pools", json_of_kept(state)}});
  else print_report(report, state);
  return 0;
}

}  // namespace

void add_gc(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand("gc", "Remove shared-memory files that killed processes left behind");
  auto format = add_format_option(*sub);
  sub->footer(
      "The strategy file_system makes files with names (in /dev/shm, or ONECOPY_SHM_DIR). Files that no\n"
      "process uses are removed. Every process also does this when it first allocates memory with\n"
      "onecopy, with any strategy. Memory in use is never touched, so this is safe at any time.\n"
      "The files of KV pools with outlives_keeper, in the store's directory, are meant to stay. They are\n"
      "listed, and not removed.\n"
      "\n"
      "Examples:\n  onecopy gc\n  ONECOPY_SHM_DIR=/mnt/shm onecopy gc --format json");
  sub->callback([&command, format] { command = [format] { return gc(*format); }; });
}

}  // namespace onecopy::cli
