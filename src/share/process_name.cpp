// SPDX-License-Identifier: Apache-2.0
#include "share/process_name.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "onecopy/core/error.h"
#include "onecopy/os/hmac.h"

namespace onecopy {
namespace {

constexpr std::string_view kPrefix = "onecopy-";

const char* runtime_directory() noexcept {
  const char* directory = std::getenv("ONECOPY_RUNTIME_DIR");
  return directory && *directory ? directory : nullptr;
}

}  // namespace

std::string public_name(const ProcessId& id) {
  static constexpr std::string_view kLabel = "onecopy process name";
  const Digest digest = hmac_sha256(std::as_bytes(std::span(id)), std::as_bytes(std::span(kLabel)));
  std::string text;
  for (std::size_t i = 0; i < 16; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

SocketName socket_name(const std::string& public_name) {
  if (const char* directory = runtime_directory())
    return {fmt::format("{}/{}{}", directory, kPrefix, public_name), false};
  return {fmt::format("{}{}", kPrefix, public_name), true};
}

/// Between a listener's bind and its listen lie microseconds, in which it looks abandoned.
void remove_abandoned_sockets() noexcept {
  const char* directory = runtime_directory();
  if (!directory) return;
  std::error_code ignored;
  const auto young = std::filesystem::file_time_type::clock::now() - std::chrono::seconds(10);
  for (const std::string& name : listening_names()) {
    const SocketName socket = socket_name(name);
    struct stat info {};
    if (::lstat(socket.text.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode) || info.st_uid != ::geteuid())
      continue;
    if (std::filesystem::last_write_time(socket.text, ignored) > young || ignored) continue;
    try {
      UnixSocket::connect(socket, std::chrono::milliseconds(0));
    } catch (const Error& e) {
      if (e.code() == ErrorCode::peer_died) ::unlink(socket.text.c_str());
    }
  }
}

std::vector<std::string> listening_names() {
  std::vector<std::string> names;
  if (const char* directory = runtime_directory()) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(directory, ignored))
      names.push_back(entry.path().filename().string());
  } else {
    names = list_abstract_names(std::string(kPrefix));
  }
  std::erase_if(names, [](const std::string& n) { return n.size() != kPrefix.size() + 32; });
  for (std::string& name : names) name.erase(0, kPrefix.size());
  return names;
}

}  // namespace onecopy
