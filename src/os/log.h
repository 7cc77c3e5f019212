// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <concepts>
#include <string>
#include <string_view>

namespace onecopy {

// Lines on stderr, "[onecopy] [warning] ..." with the pid, each in one write(2). ONECOPY_LOG = off, error, warning
// (the default), info or debug says how much. Thread safety: may be called concurrently, and in a child forked while
// another thread logs. Nothing throws; errno stays.

enum class LogLevel { debug, info, warning, error };

/// Receives each line that ONECOPY_LOG lets through: its level and its text, without prefix and line break. Any
/// thread may call it, also with locks of the library held. So it must not call onecopy, nor wait for a thread that
/// does. Its exceptions are dropped.
using LogSink = void (*)(LogLevel level, std::string_view text);

/// Lines go to `sink` from now on, in place of stderr; nullptr means stderr again. A line that another thread has
/// begun may still go to the sink before: it must stay callable. Forked children keep the sink.
void set_log_sink(LogSink sink) noexcept;

/// Reads ONECOPY_LOG now instead of at the first line. Returns false if it is no level, which is said once, or was.
bool start_log() noexcept;

void log_error(std::string_view message) noexcept;
void log_warning(std::string_view message) noexcept;
void log_info(std::string_view message) noexcept;
void log_debug(std::string_view message) noexcept;

/// Formats the line if the level is let through. If there is no memory for its text, the line is lost.
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

/// Tells whether ONECOPY_LOG lets debug lines through: one read and a branch, for paths that run a million times a
/// second.
bool logs_debug() noexcept;

/// Logs the line that `text()` returns, which is not called unless the line is let through. A line whose making throws
/// is lost.
template <std::invocable Text>
void log_debug(Text&& text) noexcept {
  if (!logs_debug()) [[likely]]
    return;
  try {
    log_debug(std::string(text()));
  } catch (...) {
    // As in log_debug(): without memory the line is lost.
  }
}

}  // namespace onecopy
