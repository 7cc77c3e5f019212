// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cerrno>

#include <fmt/format.h>
#include <sys/random.h>
#include <CLI/CLI.hpp>

#include "commands.h"
#include "onecopy/core/error.h"

namespace onecopy::cli {
namespace {

int print_key() {
  std::array<unsigned char, 32> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw_errno("cannot get random bytes from the system", errno);
  fmt::print("{:02x}\n", fmt::join(bytes, ""));
  return 0;
}

}  // namespace

void add_key(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand("key", "Print a new secret for ONECOPY_RPC_KEY");
  sub->footer(
      "All members of a group of rpc that spans several hosts need the same secret. Whoever knows it can "
      "call\n"
      "any function of any member: keep it where only this user can read it.\n"
      "\n"
      "Examples:\n  (umask 077; onecopy key > secret)\n  ONECOPY_RPC_KEY=\"$(cat secret)\" python "
      "train.py");
  sub->callback([&command] { command = [] { return print_key(); }; });
}

}  // namespace onecopy::cli
