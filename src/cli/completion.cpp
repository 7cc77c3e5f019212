// SPDX-License-Identifier: Apache-2.0
#include "completion.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands.h"

namespace onecopy::cli {
namespace {

using Words = std::vector<std::string>;

struct OptionWords {
  Words names;  ///< "--format", "-v"
  std::string description;
  bool takes_value = false;
  Words values;  ///< that it takes; empty if it takes any word
};

struct CommandWords {
  std::string name;
  std::string description;
  std::vector<OptionWords> options;  ///< of a command: options that other commands lack
  Words values;                      ///< of its first positional argument; empty if it takes any word
};

/// CLI11 tells the members of a set in the name of the option's type: "TEXT:{table,json}".
Words members(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{');
  const std::size_t close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

OptionWords words_of(const CLI::Option& option) {
  OptionWords words{{}, option.get_description(), option.get_items_expected_max() > 0, members(option)};
  for (const std::string& name : option.get_lnames()) words.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) words.names.push_back("-" + name);
  return words;
}

CommandWords words_of(const CLI::App& app) {
  CommandWords words{app.get_name(), app.get_description(), {}, {}};
  for (const CLI::Option* option : app.get_options())
    if (!option->get_positional()) words.options.push_back(words_of(*option));
    else if (words.values.empty()) words.values = members(*option);
  return words;
}

Words names_of(const std::vector<CommandWords>& commands) {
  Words names;
  for (const CommandWords& command : commands) names.push_back(command.name);
  return names;
}

std::vector<CommandWords> commands_of(const CLI::App& app, const CommandWords& all) {
  const auto is_for_all = [&](const OptionWords& option) {
    return std::any_of(all.options.begin(), all.options.end(),
                       [&](const OptionWords& other) { return other.names == option.names; });
  };
  std::vector<CommandWords> commands;
  for (const CLI::App* command : app.get_subcommands({}))
    if (!command->get_group().empty()) commands.push_back(words_of(*command));
  for (CommandWords& command : commands) {
    std::erase_if(command.options, is_for_all);
    if (command.name == "help") command.values = names_of(commands);
  }
  return commands;
}

std::string option_names(const CommandWords& command) {
  Words names;
  for (const OptionWords& option : command.options)
    names.insert(names.end(), option.names.begin(), option.names.end());
  return fmt::format("{}", fmt::join(names, " "));
}

/// For single quotes: every shell here ends them, escapes one, and begins again.
std::string quoted(std::string text) {
  for (std::size_t at = text.find('\''); at != std::string::npos; at = text.find('\'', at + 4))
    text.replace(at, 1, "'\\''");
  return fmt::format("'{}'", text);
}

// ---- bash

/// Completes the word after an option of the command that takes a word of a set.
std::string bash_values(const std::string& command, const CommandWords& words) {
  std::string cases;
  for (const OptionWords& option : words.options)
    for (const std::string& name : option.names)
      if (!option.values.empty())
        cases += fmt::format("    {}:{}) words='{}' ;;\n", command, name, fmt::join(option.values, " "));
  return cases;
}

std::string bash_script(const CommandWords& all, const std::vector<CommandWords>& commands) {
  std::string values = bash_values("*", all);
  std::string options;
  for (const CommandWords& command : commands) {
    values += bash_values(command.name, command);
    if (!command.values.empty())
      options += fmt::format("    {}) words='{}' ;;\n", command.name, fmt::join(command.values, " "));
  }
  std::string dashed;
  for (const CommandWords& command : commands)
    dashed += fmt::format("    {}:-*) words='{} {}' ;;\n", command.name, option_names(command),
                          option_names(all));
  const std::string names = fmt::format("{}", fmt::join(names_of(commands), " "));
  return fmt::format(R"(# bash completion of onecopy; load it with: source <(onecopy completion bash)
_onecopy() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command= words= w
  for w in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $w in {}) command=$w; break ;; esac
  done
  case $command:$previous in
{}  esac
  if [ -z "$words" ]; then case $command:$word in
    :-*) words='{}' ;;
    :*) words='{}' ;;
{}  esac; fi
  if [ -z "$words" ]; then case $command in
{}  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _onecopy onecopy
)",
                     fmt::join(names_of(commands), "|"), values, option_names(all), names, dashed, options);
}

// ---- zsh

/// In the descriptions of _arguments, brackets and colons have a meaning.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_options(const CommandWords& command) {
  std::string lines;
  for (const OptionWords& option : command.options)
    for (const std::string& name : option.names) {
      std::string value;
      if (!option.values.empty()) value = fmt::format(":value:({})", fmt::join(option.values, " "));
      else if (option.takes_value) value = ":value:_files";
      lines +=
          fmt::format(" {}", quoted(fmt::format("{}[{}]{}", name, zsh_text(option.description), value)));
    }
  return lines;
}

std::string zsh_script(const CommandWords& all, const std::vector<CommandWords>& commands) {
  std::string names;
  std::string cases;
  for (const CommandWords& command : commands) {
    names += fmt::format(" {}", quoted(fmt::format("{}:{}", command.name, zsh_text(command.description))));
    const std::string rest = command.values.empty()
                                 ? std::string("*:file:_files")
                                 : fmt::format("1:word:({})", fmt::join(command.values, " "));
    cases += fmt::format("        {}) _arguments{}{} {} ;;\n", command.name, zsh_options(command),
                         zsh_options(all), quoted(rest));
  }
  return fmt::format(R"(#compdef onecopy
# zsh completion of onecopy; write it to a file _onecopy in a directory of $fpath
_onecopy() {{
  local context state line
  local -a commands=({} )
  _arguments -C{} '1:command:->command' '*::argument:->argument'
  case $state in
    command) _describe command commands ;;
    argument)
      case $line[1] in
{}      esac ;;
  esac
}}
if [ "$funcstack[1]" = _onecopy ]; then _onecopy "$@"; else compdef _onecopy onecopy; fi
)",
                     names, zsh_options(all), cases);
}

// ---- fish

std::string fish_options(const std::string& condition, const CommandWords& command) {
  std::string lines;
  for (const OptionWords& option : command.options) {
    lines += fmt::format("complete -c onecopy{}", condition);
    for (const std::string& name : option.names)
      lines += name.starts_with("--") ? fmt::format(" -l {}", name.substr(2))
                                      : fmt::format(" -s {}", name.substr(1));
    if (!option.values.empty()) lines += fmt::format(" -x -a '{}'", fmt::join(option.values, " "));
    else if (option.takes_value) lines += " -r";
    lines += fmt::format(" -d {}\n", quoted(option.description));
  }
  return lines;
}

std::string fish_script(const CommandWords& all, const std::vector<CommandWords>& commands) {
  std::string text = "# fish completion of onecopy; write it to ~/.config/fish/completions/onecopy.fish\n" +
                     fish_options("", all);
  for (const CommandWords& command : commands) {
    text += fmt::format("complete -c onecopy -n __fish_use_subcommand -f -a {} -d {}\n", command.name,
                        quoted(command.description));
    const std::string after = fmt::format(" -n '__fish_seen_subcommand_from {}'", command.name);
    if (!command.values.empty())
      text += fmt::format("complete -c onecopy{} -f -a '{}'\n", after, fmt::join(command.values, " "));
    text += fish_options(after, command);
  }
  return text;
}

}  // namespace

std::string completion_script(const CLI::App& app, Shell shell) {
  const CommandWords all = words_of(app);
  const std::vector<CommandWords> commands = commands_of(app, all);
  switch (shell) {
    case Shell::bash: return bash_script(all, commands);
    case Shell::zsh: return zsh_script(all, commands);
    case Shell::fish: return fish_script(all, commands);
  }
  return {};
}

void add_completion(CLI::App& app, Command& command) {
  auto* sub =
      app.add_subcommand("completion", "Print a script that completes commands and options in a shell");
  auto shell =
      std::make_shared<Shell>(Shell::bash);  // owners: the parser, which fills it in, and the command
  sub->add_option_function<std::string>(
         "SHELL",
         [shell](const std::string& word) {
           *shell = word == "zsh" ? Shell::zsh : word == "fish" ? Shell::fish : Shell::bash;
         },
         "The shell that the script is for")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  sub->footer(
      "Examples:\n"
      "  source <(onecopy completion bash)                                  # this shell, and ~/.bashrc\n"
      "  onecopy completion zsh > ~/.zfunc/_onecopy                         # a directory of $fpath\n"
      "  onecopy completion fish > ~/.config/fish/completions/onecopy.fish");
  sub->callback([&app, &command, shell] {
    command = [&app, shell] {
      fmt::print("{}", completion_script(app, *shell));
      return 0;
    };
  });
}

}  // namespace onecopy::cli
