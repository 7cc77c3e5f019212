// SPDX-License-Identifier: Apache-2.0
#include "device/reservation.h"

#include <fmt/format.h>

#include <map>

#include "backend.h"
#include "core/throw_error.h"
#include "devices.h"
#include "mappings.h"
#include "peers.h"
#include "physical_chunk.h"

namespace onecopy::cuda {

namespace {

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

CudaReservation::CudaReservation(std::size_t bytes) : bytes_(bytes) {
  const Driver& driver = Driver::get();
  const RelaxedCapture relaxed(driver);
  const CUresult result = driver.cuMemAddressReserve(&base_, bytes, 0, 0, 0);
  if (result != CUDA_SUCCESS)
    throw Error(ErrorCode::out_of_mappings,
                fmt::format("cannot reserve {} bytes of addresses for a CUDA segment: {}", bytes,
                            driver.describe(result)),
                result, ErrorDomain::cuda);
}

CudaReservation::~CudaReservation() {
  const Driver* driver = Driver::try_get();  // null when the process ends, or in a forked child
  if (!driver) return;
  const RelaxedCapture relaxed(*driver);
  unmap(0, bytes_);
  driver->cuMemAddressFree(base_, bytes_);
}

/// Maps a whole memory. The driver cannot map a part of it, so the offset must be 0.
void CudaReservation::map(std::size_t at, const PhysicalChunk& chunk, std::size_t from, std::size_t bytes) {
  if (from != 0 || bytes != chunk.size())
    throw_error(ErrorCode::unsupported, "CUDA maps memory as a whole: bytes {} to {} of {} were asked for",
                from, from + bytes, chunk.size());
  const auto& memory = static_cast<const CudaChunk&>(chunk);
  const Driver& driver = Driver::get();
  const RelaxedCapture relaxed(driver);
  const auto added = mapped_.try_emplace(at, MappedPart{bytes, memory.ordinal()}).first;
  const CUresult result = driver.cuMemMap(base_ + at, bytes, 0, memory.handle(), 0);
  if (result == CUDA_SUCCESS) return Mappings::get().add(base_ + at, bytes, memory.ordinal());
  mapped_.erase(added);
  throw_result(result, "cuMemMap");
}

/// Unmaps. Any thread may call this, even while others capture.
void CudaReservation::unmap(std::size_t at, std::size_t bytes) noexcept {
  const Driver* driver = Driver::try_get();
  if (!driver) return;
  const RelaxedCapture relaxed(*driver);
  const auto end = mapped_.lower_bound(at + bytes);
  auto next = mapped_.lower_bound(at);
  while (next != end) {
    Mappings::get().remove(base_ + next->first);
    driver->cuMemUnmap(base_ + next->first, next->second.bytes);
    next = mapped_.erase(next);
  }
}

void CudaReservation::allow(int ordinal, std::size_t at, std::size_t bytes, Access access) {
  const auto end = mapped_.lower_bound(at + bytes);
  for (auto next = mapped_.lower_bound(at); next != end; ++next) check_path(ordinal, next->second.owner);
  const RelaxedCapture relaxed(Driver::get());
  Mappings::get().allow(base_ + at, bytes, ordinal, access);
}

std::vector<int> CudaReservation::users(std::size_t at) const { return Mappings::get().users(base_ + at); }

}  // namespace

std::unique_ptr<Reservation> CudaBackend::reserve(int, std::size_t bytes) {
  return std::make_unique<CudaReservation>(bytes);
}

}  // namespace onecopy::cuda
