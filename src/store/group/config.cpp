// SPDX-License-Identifier: Apache-2.0
#include "store/group/config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <nlohmann/json.hpp>
#include <span>

#include "onecopy/core/error.h"
#include "os/file.h"
#include "os/log.h"
#include "os/replacing_file.h"
#include "store/ferry/host_key.h"

namespace onecopy::store::group {

using nlohmann::json;

namespace {

std::string file_in(const std::string& home) { return home + "/group"; }

/// Returns the time since this machine was started, with the time for which it slept.
timespec now() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_BOOTTIME, &time);
  return time;
}
std::chrono::nanoseconds to_duration(const timespec& time) noexcept {
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

std::optional<Config> Config::find(const std::string& home) {
  const auto text = try_read_text(file_in(home));
  if (!text) return {};
  const json all = json::parse(*text, nullptr, false);
  if (!all.is_object()) return {};
  const auto get = [&](const char* field) { return all.value(field, ""); };
  return Config{get("group"),
                get("host"),
                get("address"),
                get("rack"),
                get("memory"),
                get("key_file"),
                {all.value("endpoints", std::vector<std::string>{}), get("ca_file"), get("login_file")},
                get("problem")};
}

bool Config::is_in(const std::string& home) noexcept { return ::access(file_in(home).c_str(), F_OK) == 0; }

void Config::save(const std::string& home) const {
  const std::string text = json{
      {"group", group},
      {"host", host},
      {"address", address},
      {"rack", rack},
      {"memory", memory},
      {"key_file", key_file},
      {"endpoints", etcd.endpoints},
      {"ca_file", etcd.ca_file},
      {"login_file", etcd.login_file},
      {"problem", problem}}.dump(-1, ' ', false, json::error_handler_t::replace);
  replace_file(file_in(home), std::as_bytes(std::span(text)));
}

Records Config::records() const { return {group, ferry::keys_in(key_file)}; }

/// The time of an empty file, which a full disk and a lack of descriptors do not keep from being set.
void Config::note_answer(const std::string& home) {
  const std::string path = home + "/group-answer";
  const std::array<timespec, 2> times{now(), now()};
  if (::utimensat(AT_FDCWD, path.c_str(), times.data(), 0) == 0) return;
  if (errno != ENOENT) throw_errno("cannot note in " + path + " that etcd has answered", errno);
  open_file(path, O_WRONLY | O_CREAT);
  note_answer(home);
}

std::optional<std::chrono::nanoseconds> Config::since_answer(const std::string& home) {
  struct stat status {};
  if (::stat((home + "/group-answer").c_str(), &status) != 0) return {};
  const std::chrono::nanoseconds age = to_duration(now()) - to_duration(status.st_mtim);
  return age.count() < 0 ? std::nullopt : std::optional(age);  // the machine was started since then
}

void Config::add_pulled(const std::string& home, std::uint64_t bytes) noexcept {
  try {
    const std::string text = std::to_string(pulled(home) + bytes);
    replace_file(home + "/group-pulled", std::as_bytes(std::span(text)));
  } catch (const std::exception& error) {
    log_debug(error.what());
  }
}

std::uint64_t Config::pulled(const std::string& home) {
  const std::string text = try_read_text(home + "/group-pulled").value_or("");
  std::uint64_t bytes = 0;
  std::from_chars(text.data(), text.data() + text.size(), bytes);
  return bytes;
}

}  // namespace onecopy::store::group
