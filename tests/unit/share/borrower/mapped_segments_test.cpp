// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/mapped_segments.h"

#include <gtest/gtest.h>

#include "onecopy/core/error.h"
#include "os/memfd.h"
#include "support/child.h"
#include "support/cuda_kernel.h"
#include "support/cuda_streams.h"

namespace onecopy {
namespace {

constexpr std::size_t kBytes = 4096;

ExportedMemory segment() {
  ExportedMemory memory{SegmentKind::memfd, kBytes, {}, {}};
  memory.fds.push_back(create_memfd("segment", kBytes));
  return memory;
}

constexpr Device kCuda1{DeviceType::cuda, 1};

/// As another process would send it. The byte at its beginning is 7.
ExportedMemory segment_on(Device device) {
  Backend& cuda = backend(device.type);
  const auto memory = cuda.create(device.index, cuda.granularity(), SegmentKind::cuda_vmm, "", 0);
  memory->commit(0, memory->size());
  const unsigned char seven = 7;
  copy_bytes_and_wait({memory->data(), device, &seven, kCpu, 1});
  ExportedMemory exported = memory->export_memory(Access::read_write);
  exported.device = uuid_of(device);
  return exported;
}

class MappedSegmentsOfDevices : public testing::OnCuda {
 protected:
  MappedSegmentsOfDevices() : OnCuda(2) {}
};

TEST(MappedSegments, AreFoundForTheAccessTheyAreMappedFor) {
  MappedSegments segments;
  EXPECT_FALSE(segments.find(3, Access::read_only));
  segments.map({3, Access::read_only}, segment());
  for (int again = 0; again < 2; ++again) {  // with the lock, and without
    const SegmentPlace place = segments.find(3, Access::read_only);
    ASSERT_TRUE(place);
    EXPECT_EQ(place.size, kBytes);
    EXPECT_EQ(place.identity->device, kCpu);
    EXPECT_FALSE(segments.find(3, Access::read_write));
  }
  EXPECT_TRUE(segments.contains(3, Access::read_only));
  EXPECT_FALSE(segments.contains(3, Access::read_write));
}

TEST(MappedSegments, AreUsedAsTheyAreMappedWhenAnyAccessWillDo) {
  MappedSegments segments;
  EXPECT_FALSE(segments.find_any(1, Access::read_write));
  segments.map({1, Access::read_only}, segment());
  EXPECT_EQ(segments.find_any(1, Access::read_write).data, segments.find(1, Access::read_only).data);
  segments.map({1, Access::read_write}, segment());
  EXPECT_EQ(segments.find_any(1, Access::read_write).data, segments.find(1, Access::read_write).data);
}

TEST(MappedSegments, StayWhereTheyAreWhenTheyAreMappedAgain) {
  MappedSegments segments;
  segments.map({1, Access::read_write}, segment());
  const SegmentPlace before = segments.find(1, Access::read_write);
  segments.map({1, Access::read_write}, segment());
  EXPECT_EQ(segments.find(1, Access::read_write).data, before.data);
  EXPECT_EQ(segments.count(), 1u);
}

TEST(MappedSegments, ThatAreRetiredAreGoneForEveryAccess) {
  MappedSegments segments;
  for (const Access access : {Access::read_only, Access::read_write}) {
    segments.map({1, access}, segment());
    segments.map({2, access}, segment());
    ASSERT_TRUE(segments.find(1, access));
  }
  EXPECT_EQ(segments.count(), 4u);
  segments.retire(1);
  segments.retire(99);  // never seen
  EXPECT_EQ(segments.count(), 2u);
  EXPECT_FALSE(segments.find_any(1, Access::read_only));
  EXPECT_TRUE(segments.find_any(2, Access::read_only));
  segments.close();
  EXPECT_EQ(segments.count(), 0u);
  EXPECT_FALSE(segments.find_any(2, Access::read_only));
}

/// Few segments are found without the lock; the numbers of these two have one place there.
TEST(MappedSegments, WhoseNumbersCollideAreAllFound) {
  MappedSegments segments;
  for (const std::uint32_t number : {3U, 3U + 64}) segments.map({number, Access::read_only}, segment());
  std::byte* const second = segments.find(3 + 64, Access::read_only).data;
  std::byte* const first = segments.find(3, Access::read_only).data;
  EXPECT_NE(first, second);
  EXPECT_EQ(segments.find(3 + 64, Access::read_only).data, second);
  segments.retire(3 + 64);
  EXPECT_EQ(segments.find(3, Access::read_only).data, first);
  EXPECT_FALSE(segments.find(3 + 64, Access::read_only));
}

TEST(MappedSegments, MappedForReadingArePassedOnForReadingOnly) {
  MappedSegments segments;
  segments.map({1, Access::read_only}, segment());
  EXPECT_EQ(segments.export_memory(1, Access::read_only).size, kBytes);
  try {
    segments.export_memory(1, Access::read_write);
    ADD_FAILURE() << "passed on for writing";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::owner_died) << e.what();
  }
}

TEST_F(MappedSegmentsOfDevices, AreMappedForTheDeviceThatWillUseThemOrElseForTheirOwn) {
  testing::in_child([] {
    MappedSegments segments;
    segments.map({1, Access::read_write, 0, testing::kCuda0}, segment_on(kCuda1));
    segments.map({2, Access::read_write}, segment_on(kCuda1));
    segments.map({3, Access::read_write, 0, kCpu}, segment_on(kCuda1));  // no device of theirs
    for (const auto& [number, user] : {std::pair{1u, 0}, {2u, 1}, {3u, 1}}) {
      const SegmentPlace place = segments.find(number, Access::read_write);
      EXPECT_EQ(place.user, user) << number;
      EXPECT_EQ(place.identity->device, kCuda1) << number;
      EXPECT_EQ(testing::read_by_kernel(testing::CudaCalls(), user, place.data), 7) << number;
    }
  });
}

TEST_F(MappedSegmentsOfDevices, AreAllowedToOtherDevicesThanTheyWereMappedFor) {
  testing::in_child([] {
    MappedSegments segments;
    EXPECT_EQ(segments.allow(1, Access::read_write, 1), nullptr) << "not mapped";
    segments.map({1, Access::read_only}, segment_on(testing::kCuda0));
    const std::byte* const at = segments.find(1, Access::read_only).data;
    EXPECT_EQ(segments.allow(1, Access::read_write, 1), at) << "as they are mapped";
    EXPECT_EQ(testing::read_by_kernel(testing::CudaCalls(), 1, at), 7);
    EXPECT_EQ(segments.find(1, Access::read_only).user, 0) << "they stay where they are";
    segments.map({1, Access::read_write}, segment_on(testing::kCuda0));
    EXPECT_EQ(segments.allow(1, Access::read_write, 1), segments.find(1, Access::read_write).data);
    segments.retire(1);
    EXPECT_EQ(segments.allow(1, Access::read_write, 1), nullptr);
  });
}

struct Lent {
  std::array<std::byte, 4096> blob;
  std::size_t size;
  std::atomic<int> step;
};

/// Shares memory of cudaMalloc, which ends with its owner, until step 2.
void lend_weak_segment(Lent& lent) {
  const testing::CudaCalls cu(0);
  Backend& cuda = backend(DeviceType::cuda);
  const void* const at = reinterpret_cast<void*>(cu.memory(kBytes));
  const ExportedMemory memory =
      cuda.adopt(cuda.find_foreign(at, kBytes))->export_memory(Access::read_write);
  lent.size = memory.blob.size();
  std::copy(memory.blob.begin(), memory.blob.end(), lent.blob.begin());
  lent.step = 1;
  EXPECT_TRUE(testing::eventually([&] { return lent.step == 2; }));
}

TEST_F(MappedSegmentsOfDevices, SayWhichEndWithTheirOwner) {
  testing::Shared<Lent> lent;
  testing::Child owner([&] { lend_weak_segment(*lent); });
  EXPECT_TRUE(testing::eventually([&] { return lent->step == 1; }));
  testing::in_child([&] {
    MappedSegments segments;
    segments.map({1, Access::read_write}, segment());
    segments.map({2, Access::read_write}, segment_on(testing::kCuda0));
    EXPECT_TRUE(segments.weak().empty());
    const Bytes blob(lent->blob.begin(), lent->blob.begin() + lent->size);
    segments.map({5, Access::read_only},
                 {SegmentKind::cuda_ipc, kBytes, {}, blob, uuid_of(testing::kCuda0)});
    EXPECT_EQ(segments.weak(), std::vector<std::uint32_t>{5});
    segments.retire(5);
    EXPECT_TRUE(segments.weak().empty());
  });
  lent->step = 2;
  EXPECT_EQ(owner.join(), 0);
}

}  // namespace
}  // namespace onecopy
