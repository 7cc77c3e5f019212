// SPDX-License-Identifier: Apache-2.0
#include "device/reservation.h"

#include <fmt/format.h>

#include <map>
#include <optional>

#include "backend.h"
#include "core/throw_error.h"
#include "known_ranges.h"
#include "physical_chunk.h"

namespace onecopy::ascend {

namespace {

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

AscendReservation::AscendReservation(int user, std::size_t bytes) : user_(user), bytes_(bytes) {
  const Driver& driver = Driver::get();
  const UseDevice use(user);
  const aclError result = driver.aclrtReserveMemAddress(&base_, bytes, 0, nullptr, 0);
  if (result != ACL_SUCCESS)
    throw Error(ErrorCode::out_of_mappings,
                fmt::format("cannot reserve {} bytes of addresses for an Ascend segment: {}", bytes,
                            driver.describe(result)),
                result, ErrorDomain::ascend);
}

AscendReservation::~AscendReservation() {
  const Driver* driver = Driver::try_get();  // null when the process ends, or in a forked child
  if (!driver) return;
  unmap(0, bytes_);
  driver->aclrtReleaseMemAddress(base_);
}

/// Maps a whole memory. The runtime cannot map a part of it, so the offset must be 0.
void AscendReservation::map(std::size_t at, const PhysicalChunk& chunk, std::size_t from,
                            std::size_t bytes) {
  if (from != 0 || bytes != chunk.size())
    throw_error(ErrorCode::unsupported,
                "Ascend devices map memory as a whole: bytes {} to {} of {} were asked for", from,
                from + bytes, chunk.size());
  const auto& memory = static_cast<const AscendChunk&>(chunk);
  const UseDevice use(user_);
  const auto added = mapped_.try_emplace(at).first;
  added->second.bytes = bytes;
  added->second.owner = memory.ordinal();
  added->second.memory = memory.memory();
  const aclError result = Driver::get().aclrtMapMem(base() + at, bytes, 0, memory.handle(), 0);
  if (result == ACL_SUCCESS) return;
  mapped_.erase(added);
  throw_result(result, "aclrtMapMem");
}

void AscendReservation::unmap(std::size_t at, std::size_t bytes) noexcept {
  if (!Driver::try_get()) return;
  try {
    const UseDevice use(user_);
    const auto end = mapped_.lower_bound(at + bytes);
    auto next = mapped_.lower_bound(at);
    while (next != end) {
      Driver::get().aclrtUnmapMem(base() + next->first);
      next = mapped_.erase(next);
    }
  } catch (const Error&) {
    mapped_.clear();  // the device is gone, and its mappings with it
  }
}

void AscendReservation::allow(int ordinal, std::size_t at, std::size_t bytes, Access access) {
  const auto end = mapped_.lower_bound(at + bytes);
  for (auto next = mapped_.lower_bound(at); next != end; ++next)
    allow_mapping(next->first, next->second, ordinal, access);
}

/// Allows the access. The device that holds the memory may use each of its mappings without a call.
void AscendReservation::allow_mapping(std::size_t at, MappedPart& mapped, int ordinal, Access access) {
  if (ordinal == user_) mapped.known.emplace(base() + at, mapped.bytes, access, mapped.owner);
  if (ordinal == mapped.owner && access == Access::read_write) return;
  Devices::get().require_reach(ordinal, mapped.owner);
  const UseDevice use(user_);
  const int flags =
      access == Access::read_only ? ACL_RT_MEM_ACCESS_FLAGS_READ : ACL_RT_MEM_ACCESS_FLAGS_READWRITE;
  aclrtMemAccessDesc wanted{flags, {static_cast<std::uint32_t>(ordinal), ACL_MEM_LOCATION_TYPE_DEVICE}, {}};
  Driver::get().aclrtMemSetAccess.must(base() + at, mapped.bytes, &wanted, 1);
}

}  // namespace

std::unique_ptr<Reservation> AscendBackend::reserve(int user, std::size_t bytes) {
  return std::make_unique<AscendReservation>(user, bytes);
}

}  // namespace onecopy::ascend
