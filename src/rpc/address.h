// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "onecopy/core/bytes.h"
#include "onecopy/share/handle.h"

namespace onecopy::rpc {

/// The place where a member of a group is found. The member publishes the address, and others connect to it. Thread safety: as a value.
struct Address {
  std::string name;
  std::uint32_t number = 0;
  std::int32_t pid = 0;
  /// The start of the process, which together with the pid names one process of this boot.
  std::uint64_t start_time = 0;
  Handle door;  ///< the queue that takes greetings
  Handle bell;
  std::uint64_t host = 0;  ///< this_host() of the member: the pid and the handles are valid there alone
  std::string endpoint{};  ///< for members on other hosts: Endpoint::str(), or empty

  bool is_same_process(const Address& other) const noexcept {
    return name == other.name && pid == other.pid && start_time == other.start_time && host == other.host;
  }
  Bytes to_bytes() const;
  /// Throws bad_handle, version_mismatch.
  static Address from_bytes(ByteSpan bytes);
};

/// A number of this boot of this machine and of this process's network and PID namespaces. Processes of one number reach
/// each other's memory.
std::uint64_t this_host();

/// Encodes a greeting: the greeter's address, and the queue into which the greeted member puts its messages.
Bytes encode_greeting(const Address& from, const Handle& lane);
std::pair<Address, Handle> decode_greeting(ByteSpan bytes);

}  // namespace onecopy::rpc
