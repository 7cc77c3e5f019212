// SPDX-License-Identifier: Apache-2.0
#include "onecopy/os/log.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/sink.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>

namespace onecopy {
namespace {

/// Writes each line with one call and takes no lock, so a child forked while another thread logs can
/// log too.
class StderrSink final : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& message) override {
    const auto level = spdlog::level::to_string_view(message.level);
    const std::string line =
        fmt::format("[onecopy] [{}] [{}] {}\n", std::string_view(level.data(), level.size()), ::getpid(),
                    std::string_view(message.payload.data(), message.payload.size()));
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}
};

/// Nothing for a word that is no level.
std::optional<spdlog::level::level_enum> level_of(std::string_view word) noexcept {
  if (word == "off") return spdlog::level::off;
  if (word == "error") return spdlog::level::err;
  if (word == "warning") return spdlog::level::warn;
  if (word == "info") return spdlog::level::info;
  if (word == "debug") return spdlog::level::debug;
  return {};
}

struct Log {
  Log() : logger("onecopy", std::make_shared<StderrSink>()) {
    const char* text = std::getenv("ONECOPY_LOG");
    const std::string_view word = text && *text ? text : "warning";
    const auto level = level_of(word);
    is_level = level.has_value();
    logger.set_level(level.value_or(spdlog::level::warn));
    if (!is_level)
      logger.warn(
          "ONECOPY_LOG is \"{}\", which is no level: off, error, warning, info or debug; going on with "
          "warning",
          word);
  }

  spdlog::logger logger;
  bool is_level = true;
};

/// Never destroyed: threads may log while the process ends. Not in spdlog's registry, which belongs
/// to the program that uses us.
Log& log() {
  static Log* const instance = new Log;
  return *instance;
}

void write(spdlog::level::level_enum level, const std::string& message) noexcept {
  try {
    log().logger.log(level, message);
  } catch (...) {
    // Nothing sensible is left to do when memory is used up.
  }
}

}  // namespace

bool start_log() noexcept {
  try {
    return log().is_level;
  } catch (...) {
    return true;  // as in write()
  }
}

void log_error(const std::string& message) noexcept { write(spdlog::level::err, message); }
void log_warning(const std::string& message) noexcept { write(spdlog::level::warn, message); }
void log_info(const std::string& message) noexcept { write(spdlog::level::info, message); }
void log_debug(const std::string& message) noexcept { write(spdlog::level::debug, message); }

}  // namespace onecopy
