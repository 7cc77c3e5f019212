// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace onecopy {

/// A TCP port of a host, which an IPv4 address names. Thread safety: as a value.
struct HostPort {
  std::uint32_t host = 0;  ///< the IPv4 address in the byte order of this machine
  std::uint16_t port = 0;

  /// Parses e.g. "10.0.0.1:4711". Throws invalid_argument.
  static HostPort parse(const std::string& text);
  std::string str() const;
  bool is_loopback() const noexcept { return host >> 24 == 127; }
};

/// Returns the first address of this network namespace that other hosts may reach; empty if there is only loopback. The
/// address of an interface that is down is returned only if no interface is up.
std::optional<std::uint32_t> first_host_address();

/// Returns the number of this process's network namespace, which is unique while the namespace lives. Returns 0 on
/// kernels without namespaces.
std::uint64_t network_namespace() noexcept;

}  // namespace onecopy
