// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "device/reservation.h"
#include "driver.h"
#include "known_ranges.h"

namespace onecopy::ascend {

class Physical;

/// A range of addresses from aclrtReserveMemAddress. Thread safety and invariants: see Reservation.
class AscendReservation final : public Reservation {
 public:
  /// Reserves addresses for the device `user`, in whose context all calls are made.
  AscendReservation(int user, std::size_t bytes);
  AscendReservation& operator=(AscendReservation&&) = delete;
  ~AscendReservation() override;

  std::byte* base() const noexcept override { return static_cast<std::byte*>(base_); }
  std::size_t size() const noexcept override { return bytes_; }
  void map(std::size_t at, const PhysicalChunk& chunk, std::size_t from, std::size_t bytes) override;
  void unmap(std::size_t at, std::size_t bytes) noexcept override;
  void allow(int ordinal, std::size_t at, std::size_t bytes, Access access) override;

 private:
  struct MappedPart {
    std::size_t bytes = 0;
    int owner = 0;                     ///< the device that holds the memory
    std::shared_ptr<Physical> memory;  ///< shared with the chunks, which may end before the mapping
    std::optional<KnownRange> known;   ///< set once `user` may use it
  };
  void allow_mapping(std::size_t at, MappedPart& mapped, int ordinal, Access access);

  const int user_;
  const std::size_t bytes_;
  void* base_ = nullptr;
  std::map<std::size_t, MappedPart> mapped_;  ///< by offset
};

}  // namespace onecopy::ascend
