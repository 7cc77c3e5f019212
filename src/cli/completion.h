// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace onecopy::cli {

enum class Shell { bash, zsh, fish };

/// A script that teaches the shell the commands and options of `app`, and the words that options take.
std::string completion_script(const CLI::App& app, Shell shell);

}  // namespace onecopy::cli
