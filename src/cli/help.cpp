// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands.h"
#include "share/format/wire.h"
#include "store/format/message.h"

namespace onecopy::cli {

/// Adds the command, which only explains `help` itself: main() turns `help COMMAND` into `COMMAND --help` beforehand,
/// because the parser accepts a command's name at any place.
void add_help(CLI::App& app, Command&) {
  auto* sub = app.add_subcommand("help", "Explain onecopy, or one of its commands");
  sub->add_option("COMMAND", "The command to explain");
  sub->footer("Examples:\n  onecopy help\n  onecopy help share");
  sub->callback([] { throw CLI::ValidationError("help", "must be the first word"); });
}

void add_version(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand("version", "Print the version and the commit it was built from");
  sub->footer("Example:\n  onecopy version");
  sub->callback([&app, &command] {
    command = [&app] {
      fmt::print("{}\nprotocol {}, store {}: processes that share must have the same numbers\n",
                 app.version(), wire::kProtocol.version, store::kProtocol.version);
      return 0;
    };
  });
}

}  // namespace onecopy::cli
