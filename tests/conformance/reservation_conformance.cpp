// SPDX-License-Identifier: Apache-2.0
// Addresses and memory apart, for each backend that tells them apart.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "conformance/backend_conformance.h"
#include "device/reservation.h"
#include "onecopy/core/error.h"
#include "support/refusal.h"

namespace onecopy {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ReservationConformance);

class ReservationConformance : public BackendConformance {
 protected:
  std::unique_ptr<Reservation> reserve(std::size_t pages) {
    return device().reserve(GetParam().ordinal, pages * page());
  }
  std::unique_ptr<PhysicalChunk> chunk_of(std::size_t pages) {
    return device().create_chunk(GetParam().ordinal, pages * page());
  }
  void show(Reservation& addresses, std::size_t at, const PhysicalChunk& chunk,
            Access access = Access::read_write) {
    addresses.map(at * page(), chunk, 0, chunk.size());
    addresses.allow(GetParam().ordinal, at * page(), chunk.size(), access);
  }
  std::vector<std::unique_ptr<PhysicalChunk>> lend(std::unique_ptr<PhysicalChunk>& chunk, Access access) {
    ExportedMemory exported = device().export_chunks({&chunk, 1}, access);
    exported.kind = GetParam().kind;
    exported.size = chunk->size();
    return device().import_chunks(GetParam().ordinal, std::move(exported), GetParam().ordinal);
  }

  void write(const Reservation& at, std::size_t offset, int value) {
    const auto byte = std::byte(value);
    copy_bytes_and_wait({at.base() + offset, place(), &byte, kCpu, 1});
  }
  int read(const Reservation& at, std::size_t offset) {
    std::byte value{};
    copy_bytes_and_wait({&value, kCpu, at.base() + offset, place(), 1});
    return static_cast<int>(value);
  }
};

TEST_P(ReservationConformance, AChunkLiesWhereItWasMapped) {
  const auto addresses = reserve(4);
  const auto chunk = chunk_of(2);
  EXPECT_EQ(addresses->size(), 4 * page());
  EXPECT_EQ(chunk->size(), 2 * page());
  show(*addresses, 1, *chunk);
  write(*addresses, page(), 7);
  write(*addresses, 3 * page() - 1, 8);
  EXPECT_EQ(read(*addresses, page()), 7);
  EXPECT_EQ(read(*addresses, 3 * page() - 1), 8);
}

TEST_P(ReservationConformance, AChunkKeepsItsContentWhereverItIsMappedNext) {
  const auto addresses = reserve(2);
  const auto chunk = chunk_of(1);
  show(*addresses, 0, *chunk);
  write(*addresses, 3, 5);
  addresses->unmap(0, page());
  show(*addresses, 1, *chunk);
  EXPECT_EQ(read(*addresses, page() + 3), 5);
}

TEST_P(ReservationConformance, AddressesShowOneChunkAfterAnother) {
  const auto addresses = reserve(1);
  const auto first = chunk_of(1);
  const auto second = chunk_of(1);
  show(*addresses, 0, *first);
  write(*addresses, 0, 1);
  addresses->unmap(0, page());
  show(*addresses, 0, *second);
  write(*addresses, 0, 2);
  addresses->unmap(0, page());
  show(*addresses, 0, *first);
  EXPECT_EQ(read(*addresses, 0), 1);
}

TEST_P(ReservationConformance, AMappedChunkOutlivesItsObject) {
  const auto addresses = reserve(1);
  auto chunk = chunk_of(1);
  show(*addresses, 0, *chunk);
  chunk.reset();
  write(*addresses, 9, 4);
  EXPECT_EQ(read(*addresses, 9), 4);
}

TEST_P(ReservationConformance, OneChunkShowsAtSeveralPlacesAtOnce) {
  if (!device().traits().maps_one_chunk_twice) GTEST_SKIP() << "this device maps a chunk once";
  const auto here = reserve(2);
  const auto there = reserve(1);
  const auto chunk = chunk_of(1);
  show(*here, 0, *chunk);
  show(*here, 1, *chunk);
  show(*there, 0, *chunk);
  write(*there, 1, 6);
  EXPECT_EQ(read(*here, 1), 6);
  EXPECT_EQ(read(*here, page() + 1), 6);
}

TEST_P(ReservationConformance, APartOfAChunkIsMappedOrRefusedAndChangesNothing) {
  const auto addresses = reserve(2);
  const auto chunk = chunk_of(2);
  if (!device().traits().maps_parts) {
    testing::expect_refusal(ErrorCode::unsupported, {"whole"},
                            [&] { addresses->map(0, *chunk, page(), page()); });
    show(*addresses, 0, *chunk);
    return;
  }
  show(*addresses, 0, *chunk);
  write(*addresses, page(), 3);
  const auto window = reserve(1);
  window->map(0, *chunk, page(), page());
  window->allow(GetParam().ordinal, 0, page(), Access::read_write);
  EXPECT_EQ(read(*window, 0), 3);
}

TEST_P(ReservationConformance, MoreThanAChunkHasIsRefused) {
  const auto addresses = reserve(4);
  const auto chunk = chunk_of(1);
  EXPECT_THROW(addresses->map(0, *chunk, 0, 2 * page()), Error);
  show(*addresses, 0, *chunk);
}

TEST_P(ReservationConformance, AnExportedChunkIsTheSameMemory) {
  const auto here = reserve(1);
  auto chunk = chunk_of(1);
  show(*here, 0, *chunk);
  const auto lent = lend(chunk, Access::read_write);
  ASSERT_EQ(lent.size(), 1u);
  const auto there = reserve(1);
  show(*there, 0, *lent.front());
  write(*here, 2, 11);
  EXPECT_EQ(read(*there, 2), 11);
  write(*there, 2, 12);
  EXPECT_EQ(read(*here, 2), 12);
}

TEST_P(ReservationConformance, ReadOnlyAccessDoesNotChangeTheMemory) {
  const auto addresses = reserve(2);
  const auto chunk = chunk_of(1);
  show(*addresses, 0, *chunk);
  write(*addresses, 0, 5);
  addresses->unmap(0, page());
  show(*addresses, 1, *chunk, Access::read_only);
  EXPECT_EQ(read(*addresses, page()), 5);
  if (!device().traits().host_memory) {
    EXPECT_THROW(write(*addresses, page(), 1), Error);
  } else {
    EXPECT_DEATH(*const_cast<volatile std::byte*>(addresses->base() + page()) = std::byte{1}, "");
  }
  EXPECT_EQ(read(*addresses, page()), 5);
}

TEST_P(ReservationConformance, UnmappingNothingDoesNothing) {
  const auto addresses = reserve(2);
  addresses->unmap(0, 2 * page());
  const auto chunk = chunk_of(1);
  show(*addresses, 0, *chunk);
  write(*addresses, 0, 1);
  EXPECT_EQ(read(*addresses, 0), 1);
}

INSTANTIATE_TEST_SUITE_P(Backends, ReservationConformance,
                         ::testing::Values(BackendCase{"cpu", DeviceType::cpu, 0, SegmentKind::memfd},
                                           BackendCase{"cuda", DeviceType::cuda, 0, SegmentKind::cuda_vmm},
                                           BackendCase{"npu", DeviceType::npu, 0, SegmentKind::ascend_vmm}),
                         [](const auto& one) { return one.param.name; });

}  // namespace onecopy
