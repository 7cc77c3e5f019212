// SPDX-License-Identifier: Apache-2.0
#include "os/host_port.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <charconv>
#include <memory>

#include "onecopy/core/error.h"

namespace onecopy {

HostPort HostPort::parse(const std::string& text) {
  const auto refuse = [&](const char* why) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("\"{}\" is not an address: {}; write it as 10.0.0.1:4711 (port 0 picks any free "
                    "one)",
                    text, why));
  };
  HostPort result;
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) refuse("the port is missing");
  in_addr host{};
  if (::inet_pton(AF_INET, text.substr(0, colon).c_str(), &host) != 1)
    refuse("the host is not an IPv4 address");
  result.host = ntohl(host.s_addr);
  const char* const begin = text.data() + colon + 1;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(begin, end, result.port);
  if (error != std::errc{} || at != end) refuse("the port is not a number from 0 to 65535");
  return result;
}

std::string HostPort::str() const {
  return fmt::format("{}.{}.{}.{}:{}", host >> 24, host >> 16 & 255, host >> 8 & 255, host & 255, port);
}

std::optional<std::uint32_t> first_host_address() {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(found, &::freeifaddrs);
  std::optional<std::uint32_t> of_one_down;
  for (const ifaddrs* at = list.get(); at; at = at->ifa_next) {
    if ((at->ifa_flags & IFF_LOOPBACK) != 0 || !at->ifa_addr || at->ifa_addr->sa_family != AF_INET)
      continue;
    const std::uint32_t host = ntohl(reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr.s_addr);
    if ((at->ifa_flags & IFF_UP) != 0) return host;
    if (!of_one_down) of_one_down = host;
  }
  return of_one_down;
}

std::uint64_t network_namespace() noexcept {
  struct stat status {};
  return ::stat("/proc/self/ns/net", &status) == 0 ? status.st_ino : 0;
}

}  // namespace onecopy
