// SPDX-License-Identifier: Apache-2.0
// Which way a copy from one card to another goes: the card that is written to reads the other's memory itself, or the
// driver goes by way of the host, and that is counted.
#include <gtest/gtest.h>

#include "onecopy/memory/copy.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/cuda_streams.h"
#include "support/numbers.h"

namespace onecopy {
namespace {

using testing::CudaCalls;
using testing::device_bytes;
using testing::element;
using testing::in_child;
using testing::in_child_with;
using testing::JoinedChild;
using testing::kCuda0;
using testing::set_element;

constexpr Device kCuda1{DeviceType::cuda, 1};
constexpr std::int64_t kCount = 1 << 16;

class CudaCopies : public testing::OnCuda {
 protected:
  CudaCopies() : OnCuda(2) {}
};

/// The simulator counts for itself; a real driver does not say which way it went.
void expect_copies(const CudaCalls& cu, std::uint64_t direct, std::uint64_t staged) {
  EXPECT_EQ(stats().direct_copies, direct);
  EXPECT_EQ(stats().staged_copies, staged);
  EXPECT_EQ(stats().staged_bytes, staged * kCount);
  if (cu.sim_staged) {
    EXPECT_EQ(cu.sim_staged(), staged);
  }
}

Tensor filled(Device device, std::uint8_t value) {
  Tensor tensor = device_bytes(kCount, device);
  for (const std::int64_t at : {std::int64_t{0}, kCount - 1}) set_element<std::uint8_t>(tensor, at, value);
  return tensor;
}

TEST_F(CudaCopies, OurOwnMemoryIsReadByTheOtherCard) {
  in_child([] {
    const CudaCalls cu;
    const Tensor first = filled(kCuda0, 3);
    const Tensor second = filled(kCuda1, 4);
    copy_into(first.view(), second.view());
    EXPECT_EQ(element<std::uint8_t>(second, kCount - 1), 3);
    set_element<std::uint8_t>(second, 0, 5);
    copy_into(second.view(), first.view());
    EXPECT_EQ(element<std::uint8_t>(first, 0), 5);
    expect_copies(cu, 2, 0);
  });
}

TEST_F(CudaCopies, MemoryOfAnotherProcessIsReadByTheOtherCard) {
  JoinedChild owner([&] {
    const Tensor tensor = filled(kCuda0, 3);
    note->write(share(tensor).to_text());
    note->reach(2);
  });
  JoinedChild borrower([&] {
    const CudaCalls cu;
    const Tensor first = open(Handle::from_text(note->read()), {.access = Access::read_only});
    const Tensor second = device_bytes(kCount, kCuda1);
    copy_into(first.view(), second.view());
    EXPECT_EQ(element<std::uint8_t>(second, kCount - 1), 3);
    expect_copies(cu, 1, 0);
    note->step = 2;
  });
}

TEST_F(CudaCopies, MemoryOfCudaMallocIsReadByTheOtherCard) {
  in_child([] {
    const CudaCalls cu(0);
    const auto at = cu.memory(kCount);
    cu.write(at + kCount - 1, 7);
    const TensorView first{reinterpret_cast<void*>(at), Layout(DType::u8, {kCount}), kCuda0,
                           Access::read_write};
    const Tensor second = device_bytes(kCount, kCuda1);
    copy_into(first, second.view());
    EXPECT_EQ(element<std::uint8_t>(second, kCount - 1), 7);
    expect_copies(cu, 1, 0);
  });
}

TEST_F(CudaCopies, WithoutAPathTheyAreStagedAndCounted) {
  if (!testing::is_simulated())
    GTEST_SKIP() << "wants the simulated driver: a real one has the peers that it has";
  in_child_with({{"ONECOPY_SIM_CUDA_PEERS", "none"}}, [] {
    const CudaCalls cu;
    const Tensor first = filled(kCuda0, 3);
    const Tensor second = device_bytes(kCount, kCuda1);
    copy_into(first.view(), second.view());
    copy_into(first.view(), second.view());
    EXPECT_EQ(element<std::uint8_t>(second, kCount - 1), 3);
    expect_copies(cu, 0, 2);
  });
}

TEST_F(CudaCopies, ADriverThatGivesNoAccessStagesThem) {
  if (!testing::is_simulated()) GTEST_SKIP() << "wants the simulated driver, which fails on demand";
  in_child([] {
    const CudaCalls cu;
    const Tensor first = filled(kCuda0, 3);
    const Tensor second = device_bytes(kCount, kCuda1);
    cu.sim_fail("cuMemSetAccess", 801, 0, 1);
    copy_into(first.view(), second.view());
    EXPECT_EQ(element<std::uint8_t>(second, kCount - 1), 3);
    expect_copies(cu, 0, 1);
    copy_into(first.view(), second.view());
    expect_copies(cu, 1, 1);
  });
}

TEST_F(CudaCopies, TheSourceIsMappedForTheOtherCardOnce) {
  if (!testing::is_simulated()) GTEST_SKIP() << "wants the simulated driver, which fails on demand";
  in_child([] {
    const CudaCalls cu;
    const Tensor first = filled(kCuda0, 3);
    const Tensor second = device_bytes(kCount, kCuda1);
    copy_into(first.view(), second.view());
    cu.sim_fail("cuMemSetAccess", 801, 0, -1);
    copy_into(first.view(), second.view());
    expect_copies(cu, 2, 0);
  });
}

TEST_F(CudaCopies, MemoryThatIsMappedAnewIsFoundAnew) {
  in_child([] {
    const CudaCalls cu;
    const Tensor second = device_bytes(kCount, kCuda1);
    for (std::uint8_t round = 1; round <= 3; ++round) {
      copy_into(filled(kCuda0, round).view(), second.view());
      EXPECT_EQ(element<std::uint8_t>(second, kCount - 1), round);
      trim(kCuda0);
    }
    expect_copies(cu, 3, 0);
  });
}

TEST_F(CudaCopies, ACaptureTakesTheFirstCopyOfASource) {
  in_child([] {
    const CudaCalls cu;
    const Tensor first = filled(kCuda0, 3);
    const Tensor second = filled(kCuda1, 4);
    cu.use(1);
    const testing::CUstream stream = cu.stream();
    ASSERT_EQ(cu.cuStreamBeginCapture(stream, testing::CU_STREAM_CAPTURE_MODE_GLOBAL),
              testing::CUDA_SUCCESS);
    copy_into(first.view(), second.view(), Stream{stream});
    testing::CUgraph graph = nullptr;
    ASSERT_EQ(cu.cuStreamEndCapture(stream, &graph), testing::CUDA_SUCCESS);
    testing::CUgraphExec launch = nullptr;
    ASSERT_EQ(cu.cuGraphInstantiateWithFlags(&launch, graph, 0), testing::CUDA_SUCCESS);
    ASSERT_EQ(cu.cuGraphLaunch(launch, stream), testing::CUDA_SUCCESS);
    cu.cuStreamSynchronize(stream);
    EXPECT_EQ(element<std::uint8_t>(second, kCount - 1), 3);
    expect_copies(cu, 1, 0);
  });
}

}  // namespace
}  // namespace onecopy
