// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdint>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "commands.h"
#include "os/random.h"

namespace onecopy::cli {

void add_key(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand("key", "Print a new secret for calls and stores of several hosts");
  sub->footer(
      "Hosts that call each other (ONECOPY_RPC_KEY) or that pull versions from each other's store\n"
      "(ONECOPY_STORE_KEY_FILE) need the same secret. Whoever knows it can call any function of any "
      "member:\n"
      "keep it where only this user can read it.\n"
      "\n"
      "Examples:\n  (umask 077; onecopy key > secret)\n  ONECOPY_RPC_KEY=\"$(cat secret)\" python "
      "train.py");
  sub->callback([&command] {
    command = [] {
      fmt::print("{:02x}\n", fmt::join(random_value<std::array<std::uint8_t, 32>>(), ""));
      return 0;
    };
  });
}

}  // namespace onecopy::cli
