// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

namespace onecopy {

/// A TCP port of a host, which an IPv4 or IPv6 address names. Thread safety: as a value.
struct HostPort {
  in6_addr host{};  ///< an IPv4 address is kept as ::ffff:a.b.c.d
  std::uint16_t port = 0;

  /// Parses e.g. "10.0.0.1:4711" or "[fd00::1]:4711". Throws invalid_argument.
  static HostPort parse(const std::string& text);
  /// Returns the port at the end of a text as for parse(). Throws invalid_argument.
  static std::uint16_t parse_port(const std::string& text);
  /// Returns the port at an IPv4 address, which is in the byte order of this machine.
  static HostPort of_ipv4(std::uint32_t host, std::uint16_t port) noexcept;
  /// REQUIRES: the family is AF_INET or AF_INET6.
  static HostPort of(const sockaddr_storage& address) noexcept;
  sockaddr_storage to_socket_address() const noexcept;

  std::string str() const;
  bool is_ipv4() const noexcept { return IN6_IS_ADDR_V4MAPPED(&host) != 0; }
  bool is_loopback() const noexcept;
  /// Returns whether the address is 0.0.0.0 or ::, which names all addresses of the host.
  bool is_any() const noexcept;
};

/// Returns the first address of this network namespace that other hosts may reach, with port 0; empty if there is only
/// loopback. Prefers IPv4, unless `only_ipv4` is false and there is only IPv6. The address of an interface that is down
/// is returned only if no interface is up.
std::optional<HostPort> first_host_address(bool only_ipv4 = false);

/// Returns the number of this process's network namespace, which is unique while the namespace lives. Returns 0 on
/// kernels without namespaces.
std::uint64_t network_namespace() noexcept;

}  // namespace onecopy
