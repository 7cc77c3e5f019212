// SPDX-License-Identifier: Apache-2.0
#include "host_key.h"

#include <netdb.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "transport/tls/tls_context.h"

namespace onecopy::cli {

Bytes store_key() {
  const char* const path = std::getenv("ONECOPY_STORE_KEY_FILE");
  constexpr const char* kWhatToDo =
      "write one secret into a file on each host, which only this user may read ((umask 077; onecopy key > "
      "FILE)), "
      "and set ONECOPY_STORE_KEY_FILE to its path";
  if (!path || !*path)
    throw Error(ErrorCode::invalid_argument, fmt::format("there is no key for other hosts: {}", kWhatToDo));
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

HostPort host_port(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::string host = text.substr(0, colon == std::string::npos ? 0 : colon);
  if (host.empty() || host.find_first_not_of("0123456789abcdefABCDEF.:[]") == std::string::npos)
    return HostPort::parse(text);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int failed = ::getaddrinfo(host.c_str(), text.substr(colon + 1).c_str(), &hints, &found);
  if (failed != 0)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("there is no host of that name and port, \"{}\": {}", text, ::gai_strerror(failed)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &::freeaddrinfo);
  sockaddr_storage address{};
  std::memcpy(&address, found->ai_addr, found->ai_addrlen);
  return HostPort::of(address);
}

}  // namespace onecopy::cli
