// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <concepts>
#include <string>
#include <string_view>

namespace onecopy {

// The log goes to stderr, as lines "[onecopy] [time] [warning] [pid] ...", each in one write(2). ONECOPY_LOG selects
// the level: off, error, warning (the default), info or debug. Thread safety: all functions may be called concurrently,
// and in a child that was forked while another thread logs. No function throws or changes errno.

enum class LogLevel { debug, info, warning, error };

/// A function that receives each line that ONECOPY_LOG lets through: its level and its text, without prefix and line
/// break. Any thread may call it, even with locks of the library held, so it must not call onecopy or wait for a thread
/// that does. Its exceptions are dropped.
using LogSink = void (*)(LogLevel level, std::string_view text);

/// Sends lines to `sink` in place of stderr; nullptr restores stderr. The former sink must stay callable, because
/// another thread may be about to call it. Forked children keep the sink.
void set_log_sink(LogSink sink) noexcept;

/// Reads ONECOPY_LOG now instead of at the first line. Returns false if its value is not a level, which is logged once.
bool start_log() noexcept;

void log_error(std::string_view message) noexcept;
void log_warning(std::string_view message) noexcept;
void log_info(std::string_view message) noexcept;
void log_debug(std::string_view message) noexcept;

/// Formats and logs the line if the level is let through. The line is lost if there is no memory for its text.
void log_formatted(LogLevel level, fmt::string_view format, fmt::format_args arguments) noexcept;

template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) noexcept {
  log_formatted(LogLevel::error, format, fmt::make_format_args(args...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) noexcept {
  log_formatted(LogLevel::warning, format, fmt::make_format_args(args...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) noexcept {
  log_formatted(LogLevel::info, format, fmt::make_format_args(args...));
}

/// Returns whether ONECOPY_LOG lets debug lines through. Costs a read and a branch, so that paths which run a million
/// times a second can call it.
bool logs_debug() noexcept;

/// Logs the line that `text()` returns. Calls `text` only if the line is let through. The line is lost if `text`
/// throws.
template <std::invocable Text>
void log_debug(Text&& text) noexcept {
  if (!logs_debug()) [[likely]]
    return;
  try {
    log_debug(std::string(text()));
  } catch (...) {
    // The line is lost without memory, as in log_debug() above.
  }
}

}  // namespace onecopy
