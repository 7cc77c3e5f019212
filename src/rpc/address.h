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
  std::uint64_t start_time = 0;  ///< of the process: with the pid it names one process of this boot
  Handle door;                   ///< a queue for greetings
  Handle bell;
  std::uint64_t host = 0;  ///< where this pid and these handles mean something: this_host() there
  std::string endpoint{};  ///< where members on other hosts connect, as "10.0.0.1:4711"; empty: nowhere

  Bytes to_bytes() const;
  /// Throws bad_handle, version_mismatch.
  static Address from_bytes(ByteSpan bytes);
};

/// A number of this boot of this machine and of this process's network and PID namespaces. Processes of one number reach
/// each other's memory.
std::uint64_t this_host();

/// The two parts of a greeting: the greeter, and the queue into which the greeted member puts messages for it.
Bytes encode_greeting(const Address& from, const Handle& lane);
std::pair<Address, Handle> decode_greeting(ByteSpan bytes);

}  // namespace onecopy::rpc
