// SPDX-License-Identifier: Apache-2.0
#include "share/format/process_name.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "core/throw_error.h"
#include "os/file.h"
#include "os/hmac.h"

namespace onecopy {
namespace {

constexpr std::string_view kPrefix = "onecopy-";

/// Returns the directory; empty if sockets have abstract names.
std::string runtime_directory() { return directory_in("ONECOPY_RUNTIME_DIR"); }

/// Returns whether the name is a public_name(): sockets of other programs may begin in the same way, and any user can
/// make one.
bool is_name_of_ours(std::string_view name) noexcept {
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  return name.size() == 32 && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// Returns whether the socket is old enough to be abandoned: in the microseconds between bind and listen a new socket
/// looks abandoned.
bool may_be_abandoned(const SocketName& socket) noexcept {
  std::error_code ignored;
  const auto young = std::filesystem::file_time_type::clock::now() - std::chrono::seconds(10);
  struct stat info {};
  if (::lstat(socket.text.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode) || info.st_uid != ::geteuid())
    return false;
  return std::filesystem::last_write_time(socket.text, ignored) <= young && !ignored;
}

void remove_if_abandoned(const SocketName& socket) {
  try {
    UnixSocket::connect(socket, std::chrono::milliseconds(0));
  } catch (const Error& e) {
    if (e.code() == ErrorCode::peer_died) ::unlink(socket.text.c_str());
  }
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
  if (const std::string directory = runtime_directory(); !directory.empty())
    return {fmt::format("{}/{}{}", directory, kPrefix, public_name), false};
  return {fmt::format("{}{}", kPrefix, public_name), true};
}

void remove_abandoned_sockets() noexcept {
  try {
    if (runtime_directory().empty()) return;
    for (const std::string& name : listening_names())
      if (const SocketName socket = socket_name(name); may_be_abandoned(socket))
        remove_if_abandoned(socket);
  } catch (const std::exception&) {  // the error is reported by listening in that directory
  }
}

std::vector<std::string> listening_names() {
  std::vector<std::string> names;
  if (const std::string directory = runtime_directory(); !directory.empty()) {
    std::error_code error;
    for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
         at.increment(error))
      names.push_back(at->path().filename().string());
    // The first process that listens makes the directory, in one that exists.
    const bool is_to_be_made = error == std::errc::no_such_file_or_directory &&
                               std::filesystem::exists(std::filesystem::path(directory).parent_path());
    if (error && !is_to_be_made)
      throw_errno(fmt::format("cannot read {} (ONECOPY_RUNTIME_DIR)", directory), error.value());
  } else {
    names = list_abstract_names(std::string(kPrefix));
  }
  std::erase_if(names, [](const std::string& n) { return !is_name_of_ours(n); });
  for (std::string& name : names) name.erase(0, kPrefix.size());
  return names;
}

}  // namespace onecopy
