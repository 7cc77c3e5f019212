// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sim {

/// The content of the 64 bytes of a legacy handle.
struct IpcName {
  static constexpr std::uint64_t kMemory = 0x4d454d2d4d495331;
  static constexpr std::uint64_t kEvent = 0x5645452d4d495331;
  std::uint64_t what;
  std::int32_t pid;
  std::int32_t fd;
  std::uint64_t id;
};

/// A descriptor of our own for the handle's memory; -1 when its process is gone or has closed it.
int open_in(const IpcName& name);

}  // namespace sim
