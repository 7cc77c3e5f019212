// SPDX-License-Identifier: Apache-2.0
#include "os/host_port.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <memory>

#include "core/throw_error.h"

namespace onecopy {
namespace {

[[noreturn]] void refuse_address(const std::string& text, const char* why) {
  throw_error(ErrorCode::invalid_argument,
              "\"{}\" is not an address: {}; write it as 10.0.0.1:4711 or [fd00::1]:4711 (port 0 "
              "picks any free one)",
              text, why);
}

}  // namespace

std::uint16_t HostPort::parse_port(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) refuse_address(text, "the port is missing");
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc{} || at != end) refuse_address(text, "the port is not a number from 0 to 65535");
  return port;
}

HostPort HostPort::parse(const std::string& text) {
  HostPort result;
  const std::uint16_t port = parse_port(text);
  const auto colon = text.rfind(':');
  const bool is_in_brackets = text.front() == '[' && text[colon - 1] == ']';
  in_addr host{};
  if (is_in_brackets) {
    if (::inet_pton(AF_INET6, text.substr(1, colon - 2).c_str(), &result.host) != 1)
      refuse_address(text, "the host is not an IPv6 address");
  } else {
    if (::inet_pton(AF_INET, text.substr(0, colon).c_str(), &host) != 1)
      refuse_address(text, "the host is not an IPv4 address");
    result = of_ipv4(ntohl(host.s_addr), 0);
  }
  result.port = port;
  return result;
}

HostPort HostPort::of_ipv4(std::uint32_t host, std::uint16_t port) noexcept {
  HostPort result;
  result.host.s6_addr16[5] = 0xffff;
  result.host.s6_addr32[3] = htonl(host);
  result.port = port;
  return result;
}

HostPort HostPort::of(const sockaddr_storage& address) noexcept {
  if (address.ss_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    return of_ipv4(ntohl(ipv4.sin_addr.s_addr), ntohs(ipv4.sin_port));
  }
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
  return {ipv6.sin6_addr, ntohs(ipv6.sin6_port)};
}

sockaddr_storage HostPort::to_socket_address() const noexcept {
  sockaddr_storage address{};
  if (is_ipv4()) {
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(address);
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(port);
    ipv4.sin_addr.s_addr = host.s6_addr32[3];
  } else {
    auto& ipv6 = reinterpret_cast<sockaddr_in6&>(address);
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(port);
    ipv6.sin6_addr = host;
  }
  return address;
}

std::string HostPort::str() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (is_ipv4()) ::inet_ntop(AF_INET, &host.s6_addr32[3], text.data(), text.size());
  else ::inet_ntop(AF_INET6, &host, text.data(), text.size());
  return is_ipv4() ? fmt::format("{}:{}", text.data(), port) : fmt::format("[{}]:{}", text.data(), port);
}

bool HostPort::is_loopback() const noexcept {
  return is_ipv4() ? host.s6_addr[12] == 127 : IN6_IS_ADDR_LOOPBACK(&host) != 0;
}

bool HostPort::is_any() const noexcept {
  return is_ipv4() ? host.s6_addr32[3] == 0 : IN6_IS_ADDR_UNSPECIFIED(&host) != 0;
}

std::optional<HostPort> first_host_address(bool only_ipv4) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(found, &::freeifaddrs);
  // The best address is up and IPv4, then up and IPv6, then down. An address that is valid on one link is not used.
  std::array<std::optional<HostPort>, 4> by_rank;
  for (const ifaddrs* at = list.get(); at; at = at->ifa_next) {
    const int family = at->ifa_addr ? at->ifa_addr->sa_family : AF_UNSPEC;
    if ((at->ifa_flags & IFF_LOOPBACK) != 0 || (family != AF_INET && (family != AF_INET6 || only_ipv4)))
      continue;
    sockaddr_storage address{};
    std::memcpy(&address, at->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    const HostPort host = {HostPort::of(address).host, 0};
    if (IN6_IS_ADDR_LINKLOCAL(&host.host)) continue;
    const std::size_t rank = ((at->ifa_flags & IFF_UP) != 0 ? 0 : 2) + (family == AF_INET ? 0 : 1);
    if (!by_rank[rank]) by_rank[rank] = host;
  }
  const auto best = std::ranges::find_if(by_rank, [](const auto& host) { return host.has_value(); });
  return best == by_rank.end() ? std::nullopt : *best;
}

std::uint64_t network_namespace() noexcept {
  struct stat status {};
  return ::stat("/proc/self/ns/net", &status) == 0 ? status.st_ino : 0;
}

}  // namespace onecopy
