// SPDX-License-Identifier: Apache-2.0
#include "store/group/config.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <span>

#include "onecopy/core/error.h"
#include "os/file.h"
#include "store/ferry/host_key.h"

namespace onecopy::store::group {

using nlohmann::json;

namespace {

std::string file_in(const std::string& home) { return home + "/group"; }

/// Returns the time since this machine was started, with the time for which it slept.
std::chrono::nanoseconds now() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_BOOTTIME, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

void replace(const std::string& path, const std::string& content) {
  const std::string next = fmt::format("{}.{}", path, ::getpid());
  write_all(open_file(next, O_WRONLY | O_CREAT | O_TRUNC), std::as_bytes(std::span(content)));
  if (::rename(next.c_str(), path.c_str()) != 0) throw_errno("cannot replace " + path, errno);
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
                get("memory"),
                get("key_file"),
                {all.value("endpoints", std::vector<std::string>{}), get("ca_file"), get("login_file"), {}},
                get("problem")};
}

void Config::save(const std::string& home) const {
  replace(file_in(home), json{{"group", group},
                              {"host", host},
                              {"address", address},
                              {"memory", memory},
                              {"key_file", key_file},
                              {"endpoints", etcd.endpoints},
                              {"ca_file", etcd.ca_file},
                              {"login_file", etcd.login_file},
                              {"problem", problem}}
                             .dump(-1, ' ', false, json::error_handler_t::replace));
}

void Config::remove(const std::string& home) noexcept { ::unlink(file_in(home).c_str()); }

Records Config::records() const { return {group, ferry::key_in(key_file)}; }

void Config::note_answer(const std::string& home) {
  replace(home + "/group-answer", std::to_string(now().count()));
}

std::optional<std::chrono::nanoseconds> Config::since_answer(const std::string& home) {
  const auto text = try_read_text(home + "/group-answer");
  if (!text || text->empty()) return {};
  return std::max(std::chrono::nanoseconds{0}, now() - std::chrono::nanoseconds(std::stoll(*text)));
}

}  // namespace onecopy::store::group
