// SPDX-License-Identifier: Apache-2.0
#include "share/process_name.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

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
