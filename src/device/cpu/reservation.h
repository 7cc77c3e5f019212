// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/reservation.h"

namespace onecopy {

/// A range of host addresses for memfd chunks, or parts of them. Addresses without a mapping fault. A thread of its own
/// unmaps a large mapping, so its memory may be held for a moment longer. Thread safety and invariants: see Reservation.
class HostReservation final : public Reservation {
 public:
  explicit HostReservation(std::size_t bytes);
  HostReservation& operator=(HostReservation&&) = delete;
  ~HostReservation() override;

  std::byte* base() const noexcept override { return base_; }
  std::size_t size() const noexcept override { return bytes_; }
  void map(std::size_t at, const PhysicalChunk& chunk, std::size_t from, std::size_t bytes) override;
  void unmap(std::size_t at, std::size_t bytes) noexcept override;
  void allow(int ordinal, std::size_t at, std::size_t bytes, Access access) override;
  bool try_take(Reservation& other) override;

 private:
  const std::size_t bytes_;
  std::byte* base_;  ///< null once the addresses were given away
};

}  // namespace onecopy
