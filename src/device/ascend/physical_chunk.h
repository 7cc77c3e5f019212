// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "device/reservation.h"
#include "devices.h"

namespace onecopy::ascend {

class Physical;

/// A chunk of aclrtMallocPhysical, of this process or imported. The runtime refuses to import memory twice into a
/// process, or into the process that allocated it. All chunks of one memory therefore share its handle. Thread safety:
/// see PhysicalChunk.
class AscendChunk final : public PhysicalChunk {
 public:
  /// Constructs a chunk. The chunks of one memory share `memory`, which ends with the last of them.
  AscendChunk(int ordinal, std::size_t bytes, std::shared_ptr<Physical> memory) noexcept
      : ordinal_(ordinal), bytes_(bytes), memory_(std::move(memory)) {}

  std::size_t size() const noexcept override { return bytes_; }
  /// Returns the device that holds the memory.
  int ordinal() const noexcept { return ordinal_; }
  aclrtDrvMemHandle handle() const noexcept;
  const std::shared_ptr<Physical>& memory() const noexcept { return memory_; }
  /// Returns the number by which other processes import the memory.
  std::uint64_t number() const;

 private:
  const int ordinal_;
  const std::size_t bytes_;
  const std::shared_ptr<Physical> memory_;
};

/// Returns the properties of the physical memory of segments.
aclrtPhysicalMemProp memory_on(int ordinal) noexcept;

}  // namespace onecopy::ascend
