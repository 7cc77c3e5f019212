// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include "device/reservation.h"
#include "driver.h"

namespace onecopy::cuda {

/// A range of addresses from cuMemAddressReserve. The driver needs no context for addresses or memory, so none is
/// created. Thread safety and invariants: see Reservation.
class CudaReservation final : public Reservation {
 public:
  explicit CudaReservation(std::size_t bytes);
  CudaReservation& operator=(CudaReservation&&) = delete;
  ~CudaReservation() override;

  std::byte* base() const noexcept override { return reinterpret_cast<std::byte*>(base_); }
  std::size_t size() const noexcept override { return bytes_; }
  void map(std::size_t at, const PhysicalChunk& chunk, std::size_t from, std::size_t bytes) override;
  void unmap(std::size_t at, std::size_t bytes) noexcept override;
  void allow(int ordinal, std::size_t at, std::size_t bytes, Access access) override;
  std::vector<int> users(std::size_t at) const override;

 private:
  struct MappedPart {
    std::size_t bytes;
    int owner;  ///< the device that holds the memory
  };

  const std::size_t bytes_;
  CUdeviceptr base_ = 0;
  std::map<std::size_t, MappedPart> mapped_;  ///< by offset
};

}  // namespace onecopy::cuda
