// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "device/reservation.h"
#include "devices.h"

namespace onecopy::ascend {

class Physical;

/// Memory of aclrtMallocPhysical, of this process or imported. The runtime refuses to import one memory twice into a
/// process, or into its maker. Therefore all chunks of one memory share its handle. Thread safety: see PhysicalChunk.
class AscendChunk final : public PhysicalChunk {
 public:
  /// The chunks of one memory share `memory`; the last of them ends it.
  AscendChunk(int ordinal, std::size_t bytes, std::shared_ptr<Physical> memory) noexcept
      : ordinal_(ordinal), bytes_(bytes), memory_(std::move(memory)) {}

  std::size_t size() const noexcept override { return bytes_; }
  /// The device with the memory.
  int ordinal() const noexcept { return ordinal_; }
  aclrtDrvMemHandle handle() const noexcept;
  const std::shared_ptr<Physical>& memory() const noexcept { return memory_; }
  /// The number by which other processes import it.
  std::uint64_t number() const;

 private:
  const int ordinal_;
  const std::size_t bytes_;
  const std::shared_ptr<Physical> memory_;
};

std::unique_ptr<PhysicalChunk> create_chunk(int ordinal, std::size_t bytes);
/// `user`: the device that imports it.
std::unique_ptr<PhysicalChunk> import_chunk(int home, const ExportedMemory& memory, int user);
ExportedMemory export_chunk(const PhysicalChunk& chunk, Access access);

/// The properties of the physical memory of segments.
aclrtPhysicalMemProp memory_on(int ordinal) noexcept;

}  // namespace onecopy::ascend
