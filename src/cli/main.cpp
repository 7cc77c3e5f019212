// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands.h"
#include "core/closest_word.h"
#include "os/log.h"
#include "text.h"

namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

std::string help_of(const CLI::App& app) {
  std::string words = "onecopy";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    words += " " + at->get_name();
  }
  return words + " --help";
}

std::string what_is_wrong(const CLI::App* app, const CLI::Error& error) {
  return fmt::format("onecopy: {}; see {}\n", error.what(), help_of(*app));
}

/// Keeps CLI11 from breaking lines itself, which it does from 2.5 on.
void keep_lines(auto& formatter) {
  if constexpr (requires { formatter.enable_footer_formatting(false); }) {
    formatter.right_column_width(1000);
    formatter.enable_description_formatting(false);
    formatter.enable_footer_formatting(false);
  }
}

/// Breaks lines of the parser's help at the width of the terminal.
class WrappedHelp : public CLI::Formatter {
 public:
  WrappedHelp() { keep_lines(*this); }
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    return onecopy::cli::wrap_help(CLI::Formatter::make_help(app, std::move(name), mode),
                                   onecopy::cli::prose_width());
  }
};

void add_global_options(CLI::App& app) {
  app.formatter(std::make_shared<WrappedHelp>());
  app.set_version_flag("--version", "onecopy " ONECOPY_VERSION " (" ONECOPY_COMMIT ")");
  app.add_option_function<std::string>(
         "--log-level", [](const std::string& level) { ::setenv("ONECOPY_LOG", level.c_str(), 1); },
         "What the library reports on stderr; the same as ONECOPY_LOG")
      ->check(CLI::IsMember({"off", "error", "warning", "info", "debug"}))
      ->type_name("LEVEL");
  app.fallthrough();  // options may also follow the command
  app.failure_message(what_is_wrong);
  app.footer(
      "Examples:\n"
      "  onecopy share model.safetensors   hold a file in shared memory and print its handle\n"
      "  onecopy open onecopy:...          open it in any other process of this user\n"
      "  onecopy ls                        list the processes that share memory\n"
      "\n"
      "Each command explains itself: onecopy help COMMAND\n"
      "Exit status: 0 done, 1 failed (the reason is on stderr), 2 wrong usage.");
}

/// Opens standard descriptors that are closed, so that reading or writing is an error (stderr drops its lines).
/// Otherwise a socket or a segment would reuse the descriptor and receive output.
void keep_standard_descriptors() noexcept {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
}

int output_lost(int error) {
  fmt::print(stderr, "onecopy: cannot write to stdout: {}\n", std::strerror(error));
  return kFailed;
}

/// Returns the status after checking that the output was written: a full disk is not a success.
int with_output_written(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  return output_lost(errno);
}

/// Returns a text that says that a word is not a command, and which command it may mean.
std::string no_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string_view> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!sub->get_group().empty()) names.push_back(sub->get_name());
  return fmt::format("no command \"{}\"{}", word, onecopy::did_you_mean(word, names));
}

bool is_command(const CLI::App& app, const std::string& word) {
  const auto commands = app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == word; });
  return !commands.empty();
}

/// Returns the words of the command line, with `help COMMAND` as `COMMAND --help`. Throws a ParseError for help about
/// an unknown command.
std::vector<std::string> words_of(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (words.empty() || words.front() != "help") return words;
  words.erase(words.begin());
  if (!words.empty() && !words.front().starts_with('-') && !is_command(app, words.front()))
    throw CLI::ValidationError(no_command(app, words.front()));
  words.emplace_back("--help");
  return words;
}

int run(const onecopy::cli::Command& command) {
  if (!onecopy::start_log())
    ::unsetenv("ONECOPY_LOG");  // reported once: child processes should not repeat it
  try {
    return with_output_written(command());
  } catch (const std::exception& error) {
    const auto* failed = dynamic_cast<const std::system_error*>(&error);
    if (failed && std::ferror(stdout) != 0) return output_lost(failed->code().value());
    std::fflush(stdout);
    fmt::print(stderr, "onecopy: {}\n", error.what());
    return kFailed;
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace onecopy::cli;
  keep_standard_descriptors();
  CLI::App app("onecopy: keep one copy of a tensor, and let every process use it.", "onecopy");
  Command command;
  add_global_options(app);
  for (auto add : {add_share, add_load, add_open, add_store, add_ls, add_doctor, add_gc, add_key, add_help,
                   add_version, add_doctor_peer})
    add(app, command);
  app.allow_extras();  // extra words are named below; set after the commands were added
  try {
    std::vector<std::string> words = words_of(app, argc, argv);
    if (!words.empty() && words.front() == "complete")
      return with_output_written(complete(app, std::span(words).subspan(1)));
    std::ranges::reverse(words);  // the parser expects them in this order
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? with_output_written(0) : kWrongUsage;
  }
  if (command && app.remaining().empty()) return run(command);
  if (app.remaining().empty()) {
    fmt::print("{}", app.help());
    return with_output_written(0);
  }
  const std::string extra = app.remaining().front();
  fmt::print(stderr, "onecopy: {}; see {}\n",
             command ? fmt::format("not expected: {}", extra) : no_command(app, extra), help_of(app));
  return kWrongUsage;
}
