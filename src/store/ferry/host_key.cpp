// SPDX-License-Identifier: Apache-2.0
#include "store/ferry/host_key.h"

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <span>
#include <string>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "transport/fabric.h"
#include "transport/tls/tls_context.h"

namespace onecopy::store::ferry {

namespace {

constexpr const char* kWhatToDo =
    "write one secret into a file on each host, which only this user may read ((umask 077; onecopy key > "
    "FILE)), "
    "and set ONECOPY_STORE_KEY_FILE to its path";

}  // namespace

std::vector<Bytes> store_keys() {
  const char* const path = std::getenv("ONECOPY_STORE_KEY_FILE");
  if (!path || !*path)
    throw Error(ErrorCode::invalid_argument, fmt::format("there is no key for other hosts: {}", kWhatToDo));
  return keys_in(path);
}

std::vector<Bytes> keys_in(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the key file {} cannot be read: {}", path, kWhatToDo));
  std::vector<Bytes> keys;
  for (std::string line; std::getline(file, line) || keys.empty();) {
    while (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() && !keys.empty()) continue;
    if (line.size() < transport::TlsContext::kMinSecretBytes)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("the key in {} has {} bytes, and needs at least {}: `onecopy key` prints a new one",
                      path, line.size(), transport::TlsContext::kMinSecretBytes));
    const auto bytes = std::as_bytes(std::span(line));
    keys.emplace_back(bytes.begin(), bytes.end());
  }
  return keys;
}

bool is_over_ucx() {
  const char* const value = std::getenv("ONECOPY_STORE_FABRIC");
  const std::string fabric = transport::fabric_by("ONECOPY_STORE_FABRIC", value ? value : "");
  if (fabric.empty()) return false;
  transport::require_fabric(fabric);
  static std::once_flag said;
  std::call_once(said, [] { log_warning("versions go between hosts over ucx: they are not encrypted"); });
  return true;
}

}  // namespace onecopy::store::ferry
