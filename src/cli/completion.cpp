// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands.h"
#include "store_table.h"
#include "text.h"

namespace onecopy::cli {
namespace {

/// A place on a command line, where a word of this command follows, or the value of an option.
struct Cursor {
  const CLI::App* command;
  const CLI::Option* option = nullptr;
  std::size_t arguments = 0;  ///< the number of words after the command, without options and values
};

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
}

std::vector<const CLI::Option*> positionals_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

const CLI::Option* option_named(const CLI::App* command, const std::string& name) {
  for (; command; command = command->get_parent())
    if (const CLI::Option* const found = command->get_option_no_throw(name)) return found;
  return nullptr;
}

Cursor cursor_after(const CLI::App& app, std::span<const std::string> words) {
  Cursor at{&app};
  for (const std::string& word : words) {
    if (word == "=") continue;  // bash makes three words of --option=value
    if (std::exchange(at.option, nullptr)) continue;
    if (word.starts_with('-')) {
      const CLI::Option* const option = option_named(at.command, word);
      if (option && option->get_items_expected_min() > 0) at.option = option;
      continue;
    }
    const auto subs = commands_of(*at.command);
    const auto sub = std::ranges::find(subs, word, [](const CLI::App* one) { return one->get_name(); });
    if (at.arguments == 0 && sub != subs.end()) at.command = *sub;
    else ++at.arguments;
  }
  return at;
}

/// Prints the words that may follow and begin with `typed`, one a line with its description behind a tab. The line
/// ":files" stands for the names of files.
class Offer {
 public:
  Offer(const CLI::App& app, std::string typed) : app_(app), typed_(std::move(typed)) {}

  void words(const Cursor& at) {
    const auto positionals = positionals_of(*at.command);
    if (at.option) return values(*at.option, false);
    if (typed_.starts_with('-')) return options(at.command);
    if (at.arguments == 0) commands(at.command->get_name() == "help" ? app_ : *at.command);
    if (at.arguments < positionals.size()) values(*positionals[at.arguments], at.arguments == 0);
  }

 private:
  void word(std::string_view word, std::string_view description) {
    if (word.starts_with(typed_) && said_.emplace(word).second) fmt::print("{}\t{}\n", word, description);
  }
  void commands(const CLI::App& app) {
    for (const CLI::App* sub : commands_of(app)) word(sub->get_name(), sub->get_description());
  }
  void options(const CLI::App* command) {
    for (; command; command = command->get_parent())
      for (const CLI::Option* option : command->get_options()) {
        for (const std::string& name : option->get_lnames()) word("--" + name, option->get_description());
        for (const std::string& name : option->get_snames()) word("-" + name, option->get_description());
      }
  }
  void values(const CLI::Option& option, bool is_first) {
    const std::string name = option.get_positional() ? option.get_name() : "",
                      type = option.get_type_name();
    if (name == "FILE" || type.starts_with("FILE") || type.starts_with("DIR")) fmt::print(":files\n");
    if (option.check_lname("device"))
      for (const char* device : {"cpu", "cuda:0", "npu:0"}) word(device, "");
    if (is_first && name == "NAME")
      for (const auto& object : poll_store().objects)
        if (escaped(object.name) == object.name) word(object.name, "");
    const std::size_t begin = type.find('{'), end = type.find('}');  // the words that an option takes
    if (end == std::string::npos) return;
    for (const std::string& one : CLI::detail::split(type.substr(begin + 1, end - begin - 1), ','))
      word(one, "");
  }

  const CLI::App& app_;
  const std::string typed_;
  std::set<std::string, std::less<>> said_;
};

}  // namespace

int complete(const CLI::App& app, std::span<const std::string> words) {
  if (words.empty()) return 0;
  const std::string& typed = words.back();
  Offer(app, typed == "=" ? "" : typed).words(cursor_after(app, words.first(words.size() - 1)));
  return 0;
}

}  // namespace onecopy::cli
