// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "onecopy/core/device.h"
#include "onecopy/share/handle_fields.h"

namespace onecopy {

/// Names a segment in every process.
struct SegmentRef {
  ProcessId owner{};
  ProcessId maker{};  ///< holds it too, and serves it when the owner is gone
  Uuid device{};      ///< zero for the CPU
  SegmentKind kind = SegmentKind::memfd;
  std::uint32_t number = 0;  ///< of the owner; never reused
  std::uint64_t size = 0;    ///< bytes
};

/// Names a segment for processes that do not know its owner's id: public_name() of the owner, and the number there.
using SegmentKey = std::pair<std::string, std::uint32_t>;

/// Names one allocation in the block table of an owner.
struct BlockName {
  std::uint32_t block = 0;
  std::uint64_t generation = 0;
  auto operator<=>(const BlockName&) const = default;
};

}  // namespace onecopy
