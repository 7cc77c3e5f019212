// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "onecopy/core/tensor_view.h"

namespace onecopy {

/// A piece of physical memory of one device. Reservations map it, in this and other processes. The device reclaims it
/// with the last object, mapping and descriptor anywhere. Thread safety: const members may be called concurrently.
class PhysicalChunk {
 public:
  virtual ~PhysicalChunk() = default;
  virtual std::size_t size() const noexcept = 0;
};

/// A range of addresses of this process for the memory of one type of device. The destructor unmaps all its mappings.
/// Chunks must be of the reservation's own backend, and may be destroyed while they are mapped.
///
/// Thread safety: base() and size() may be called by any thread; the caller serialises the other members. Invariant:
/// mappings lie within [0, size()) and never overlap.
class Reservation {
 public:
  virtual ~Reservation() = default;
  virtual std::byte* base() const noexcept = 0;
  virtual std::size_t size() const noexcept = 0;

  /// Maps bytes [from, from + bytes) of the chunk at base() + at. No device may access them before allow(). All four
  /// numbers are multiples of the backend's granularity. A backend without BackendTraits::maps_parts takes whole chunks
  /// only. Throws invalid_argument, out_of_mappings, unsupported; nothing has changed then.
  virtual void map(std::size_t at, const PhysicalChunk& chunk, std::size_t from, std::size_t bytes) = 0;
  /// Unmaps whole mappings. Ignores addresses without one. REQUIRES: the caller has waited for work that used them.
  virtual void unmap(std::size_t at, std::size_t bytes) noexcept = 0;
  /// Lets a device use the whole mappings in [at, at + bytes). Throws unsupported if that device has no way to the
  /// memory.
  virtual void allow(int ordinal, std::size_t at, std::size_t bytes, Access access) = 0;
  /// Returns the devices that may use the mapping that begins at base() + at.
  virtual std::vector<int> users(std::size_t) const { return {}; }
  /// Moves the only mapping of `other`, a reservation of the same backend and size, over all mappings here. A thread of the
  /// host that reads meanwhile finds the old or the new memory, and never an address without a mapping. `other` has
  /// no addresses afterwards. Returns false, with nothing changed, if the backend cannot move mappings. Throws
  /// out_of_mappings, and then the old memory is still mapped here.
  virtual bool try_take(Reservation&) { return false; }
};

}  // namespace onecopy
