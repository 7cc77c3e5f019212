// SPDX-License-Identifier: Apache-2.0
#include "store/ferry/host_key.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "transport/tls/tls_context.h"

namespace onecopy::store::ferry {

namespace {

constexpr const char* kWhatToDo =
    "write one secret into a file on each host, which only this user may read ((umask 077; onecopy key > "
    "FILE)), "
    "and set ONECOPY_STORE_KEY_FILE to its path";

}  // namespace

Bytes store_key() {
  const char* const path = std::getenv("ONECOPY_STORE_KEY_FILE");
  if (!path || !*path)
    throw Error(ErrorCode::invalid_argument, fmt::format("there is no key for other hosts: {}", kWhatToDo));
  return key_in(path);
}

Bytes key_in(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the key file {} cannot be read: {}", path, kWhatToDo));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.size() < transport::TlsContext::kMinSecretBytes)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("the key in {} has {} bytes, and needs at least {}: `onecopy key` prints a new one",
                    path, text.size(), transport::TlsContext::kMinSecretBytes));
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace onecopy::store::ferry
