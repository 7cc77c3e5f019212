// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "onecopy/core/api.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// The kinds of device. The numbers are part of handles.
enum class DeviceType : std::uint8_t { cpu = 1, cuda = 2, npu = 3 };

/// A device by this process's own numbering. Other processes are sent the Uuid instead.
struct Device {
  DeviceType type = DeviceType::cpu;
  std::int16_t index = 0;

  /// Parses "cpu", "cuda:0" or "npu:1". Throws invalid_argument on anything else.
  static Device parse(std::string_view text);
  std::string str() const;
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 in here for a pointer
  auto operator<=>(const Device&) const = default;
};

ONECOPY_CONSTANT Device kCpu{};

/// The name of a device that is the same in every process of the host. All bytes are zero for the CPU.
struct Uuid {
  std::array<std::uint8_t, 16> bytes{};

  /// Returns 8-4-4-4-12 hexadecimal digits, as in "GPU-xxxxxxxx-xxxx-...", without the prefix.
  std::string str() const;
  bool operator==(const Uuid&) const = default;
};

std::string_view name(DeviceType type) noexcept;

}  // namespace onecopy
ONECOPY_API_END
