// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "onecopy/core/device.h"

namespace onecopy {
class PhysicalChunk;
class Reservation;
}  // namespace onecopy

namespace onecopy::graph {

/// A piece of memory, named by its first byte.
struct Region {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
};

/// Addresses for a capture that takes them for others. A capture executes nothing, so that a little memory, shown again
/// and again, stands in for any amount of it.
///
/// Thread safety: const members may be called concurrently. Move-only.
/// Invariant: a stand-in differs from its original in each bit from Relocation::kAlignment up to kSpan, and in none
/// below.
class StandIns {
 public:
  static constexpr std::uint64_t kSpan = std::uint64_t{1} << 36;

  /// Throws unsupported where one memory cannot have several addresses, out_of_memory, out_of_mappings.
  StandIns(Device device, std::span<const Region> originals);
  StandIns(StandIns&&) noexcept;
  ~StandIns();

  std::size_t size() const noexcept { return places_.size(); }
  std::uint64_t at(std::size_t index) const { return places_.at(index); }

 private:
  void add(Device device, const Region& original);

  std::unique_ptr<PhysicalChunk> memory_;
  std::vector<std::unique_ptr<Reservation>> addresses_;
  std::vector<std::uint64_t> places_;
};

}  // namespace onecopy::graph
