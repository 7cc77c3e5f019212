// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <string>

namespace CLI {
class App;
}

namespace onecopy::cli {

/// A command to run. The chosen subcommand sets it while the command line is parsed; main() runs it afterwards and
/// exits with the status that it returns.
using Command = std::function<int()>;

// Each function adds its subcommand to `app`. There is one file per command.
void add_store(CLI::App& app, Command& command);
/// Adds `store serve`, `store status` and `store stop`, the commands about the keeper's processes.
void add_keeper_commands(CLI::App& store, Command& command);
/// Adds `store leave` and `store group restore`.
void add_group_commands(CLI::App& store, Command& command);
void add_store_pull(CLI::App& store, Command& command);
void add_share(CLI::App& app, Command& command);
void add_load(CLI::App& app, Command& command);
void add_open(CLI::App& app, Command& command);
void add_ls(CLI::App& app, Command& command);
void add_doctor(CLI::App& app, Command& command);
void add_doctor_peer(CLI::App& app, Command& command);
void add_gc(CLI::App& app, Command& command);
void add_key(CLI::App& app, Command& command);
void add_help(CLI::App& app, Command& command);
void add_version(CLI::App& app, Command& command);

/// Prints what the last of these words of a command line may become, for the completions of shells. Returns 0.
int complete(const CLI::App& app, std::span<const std::string> words);

}  // namespace onecopy::cli
