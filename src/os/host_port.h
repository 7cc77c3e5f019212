// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace onecopy {

/// A TCP port of a host, by its IPv4 address. Thread safety: as a value.
struct HostPort {
  std::uint32_t host = 0;  ///< in the byte order of this machine
  std::uint16_t port = 0;

  /// "10.0.0.1:4711". Throws invalid_argument.
  static HostPort parse(const std::string& text);
  std::string str() const;
  bool is_loopback() const noexcept { return host >> 24 == 127; }
};

/// The first address of this network namespace that others may reach; empty if there is loopback alone.
std::optional<std::uint32_t> first_host_address();

/// A number of this process's network namespace, which no other one has while it lives. 0 on kernels without them.
std::uint64_t network_namespace() noexcept;

}  // namespace onecopy
