// SPDX-License-Identifier: Apache-2.0
#include "os/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <utility>

namespace onecopy {
namespace {

/// The lowest level that is written; `off` is above all levels.
enum class Threshold { debug, info, warning, error, off };

constexpr std::array<std::pair<std::string_view, Threshold>, 5> kWords{{{"off", Threshold::off},
                                                                        {"error", Threshold::error},
                                                                        {"warning", Threshold::warning},
                                                                        {"info", Threshold::info},
                                                                        {"debug", Threshold::debug}}};

/// The value of ONECOPY_LOG when it was read.
struct Setting {
  Threshold threshold = Threshold::warning;
  bool is_level = true;
};

// Plain atomics, without locks and guarded statics, so that a child forked in the middle of a line can log.
constexpr int kUnread = -1;
constexpr int kNoLevel = 16;  // added to the threshold
std::atomic<int> g_setting{kUnread};
std::atomic<LogSink> g_sink{nullptr};

constexpr Setting unpacked(int setting) noexcept {
  return {static_cast<Threshold>(setting % kNoLevel), setting < kNoLevel};
}

std::optional<Threshold> threshold_of(std::string_view word) noexcept {
  for (const auto& [name, threshold] : kWords)
    if (word == name) return threshold;
  return {};
}

constexpr std::string_view name_of(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::debug: return "debug";
    case LogLevel::info: return "info";
    case LogLevel::warning: return "warning";
    case LogLevel::error: return "error";
  }
  return "error";
}

constexpr std::size_t kOnStack = 1024;
using Line = fmt::basic_memory_buffer<char, kOnStack>;

/// Appends the time in UTC, such as "2026-11-29T04:55:12.345Z". gmtime_r() would take a lock, which a child that was
/// forked in the middle of a line finds locked.
void append_time(Line& line) {
  using namespace std::chrono;
  const auto now = floor<milliseconds>(system_clock::now());
  const auto day = floor<days>(now);
  const year_month_day date(day);
  const hh_mm_ss time(now - day);
  fmt::format_to(std::back_inserter(line), "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
                 static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                 static_cast<unsigned>(date.day()), time.hours().count(), time.minutes().count(),
                 time.seconds().count(), time.subseconds().count());
}

/// Writes a line with one call, so that lines of several processes do not mix. Throws bad_alloc for a long line.
void write_to_stderr(LogLevel level, std::string_view text) {
  Line line;
  fmt::format_to(std::back_inserter(line), "[onecopy] [");
  append_time(line);
  fmt::format_to(std::back_inserter(line), "] [{}] [{}] {}\n", name_of(level), ::getpid(), text);
  while (::write(STDERR_FILENO, line.data(), line.size()) < 0 && errno == EINTR) {
  }
}

void deliver(LogLevel level, std::string_view text) noexcept {
  const int saved = errno;  // callers may log between a failed call and reading errno
  try {
    const LogSink sink = g_sink.load(std::memory_order_acquire);
    sink ? sink(level, text) : write_to_stderr(level, text);
  } catch (...) {
    // The line is lost without memory.
  }
  errno = saved;
}

void say_that_it_is_no_level(const char* word) noexcept {
  try {
    deliver(LogLevel::warning,
            fmt::format("ONECOPY_LOG is \"{}\", which is not a level (off, error, warning, info, debug); "
                        "using warning",
                        word));
  } catch (...) {
    // The line is lost without memory.
  }
}

/// Returns the setting, and reads ONECOPY_LOG at the first call.
Setting setting() noexcept {
  int known = g_setting.load(std::memory_order_relaxed);
  if (known != kUnread) return unpacked(known);
  const char* text = std::getenv("ONECOPY_LOG");
  const auto threshold = text && *text ? threshold_of(text) : Threshold::warning;
  const int found =
      threshold ? static_cast<int>(*threshold) : static_cast<int>(Threshold::warning) + kNoLevel;
  if (!g_setting.compare_exchange_strong(known, found)) return unpacked(known);
  if (!threshold) say_that_it_is_no_level(text);
  return unpacked(found);
}

bool is_let_through(LogLevel level) noexcept {
  return static_cast<int>(level) >= static_cast<int>(setting().threshold);
}

void write(LogLevel level, std::string_view text) noexcept {
  if (is_let_through(level)) deliver(level, text);
}

}  // namespace

bool logs_debug() noexcept {
  const int known = g_setting.load(std::memory_order_relaxed);
  return known == static_cast<int>(Threshold::debug) ||
         (known == kUnread && setting().threshold == Threshold::debug);
}

bool start_log() noexcept { return setting().is_level; }
void set_log_sink(LogSink sink) noexcept { g_sink.store(sink, std::memory_order_release); }

void log_error(std::string_view message) noexcept { write(LogLevel::error, message); }
void log_warning(std::string_view message) noexcept { write(LogLevel::warning, message); }
void log_info(std::string_view message) noexcept { write(LogLevel::info, message); }
void log_debug(std::string_view message) noexcept { write(LogLevel::debug, message); }

void log_formatted(LogLevel level, fmt::string_view format, fmt::format_args arguments) noexcept {
  if (!is_let_through(level)) return;
  const int saved = errno;
  try {
    fmt::memory_buffer line;
    fmt::vformat_to(std::back_inserter(line), format, arguments);
    deliver(level, {line.data(), line.size()});
  } catch (...) {
    // The line is lost without memory.
  }
  errno = saved;
}

}  // namespace onecopy
