// SPDX-License-Identifier: Apache-2.0
// Copies on one card that leave its processors to the other processes which share it.
#include <gtest/gtest.h>

#include <vector>

#include "device/cuda/detours.h"
#include "onecopy/share/share.h"
#include "support/cuda_streams.h"
#include "support/numbers.h"

namespace onecopy {
namespace {

using cuda::Detours;
using testing::CudaCalls;
using testing::device_bytes;
using testing::element;
using testing::in_child;
using testing::kCuda0;

constexpr std::int64_t kRoom = 4096;

using CudaDetours = testing::OnCuda;

Transfer between(const Tensor& to, const Tensor& from, std::size_t bytes) {
  return {to.data(), to.device(), from.data(), from.device(), bytes};
}

bool detour(const Transfer& transfer, Stream stream) {
  return Detours::get().copy(cuda_backend(), transfer, stream);
}

TEST_F(CudaDetours, ACopyIsInTheOrderOfItsStream) {
  in_child([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor from = device_bytes(kRoom);
    const Tensor first = device_bytes(kRoom);
    const Tensor second = device_bytes(kRoom);
    testing::close_with(cu, stream, *gate);
    for (const auto& [to, value] : {std::pair{&first, 5}, std::pair{&second, 6}}) {
      testing::fill(cu, from, static_cast<unsigned char>(value), stream);
      ASSERT_TRUE(detour(between(*to, from, 7), Stream{stream}));
    }
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY) << "the host has not waited";
    gate->open = true;
    ASSERT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
    EXPECT_EQ(element<unsigned char>(first, 6), 5);
    EXPECT_EQ(element<unsigned char>(second, 6), 6);
  });
}

TEST_F(CudaDetours, EachStreamHasItsOwn) {
  in_child([&] {
    const CudaCalls cu(0);
    const auto held = cu.stream();
    const auto other = cu.stream();
    const Tensor from = device_bytes(kRoom);
    const Tensor to = device_bytes(kRoom);
    testing::fill(cu, from, 5, nullptr);
    cu.cuCtxSynchronize();
    testing::close_with(cu, held, *gate);
    ASSERT_TRUE(detour(between(to, from, 7), Stream{held}));
    ASSERT_TRUE(detour(between(device_bytes(kRoom), from, 7), Stream{other}));
    EXPECT_EQ(cu.cuStreamSynchronize(other), testing::CUDA_SUCCESS) << "it waits for no other stream";
    gate->open = true;
    ASSERT_EQ(cu.cuStreamSynchronize(held), testing::CUDA_SUCCESS);
    EXPECT_EQ(element<unsigned char>(to, 6), 5);
  });
}

TEST_F(CudaDetours, ALongCopyTakesNone) {
  in_child([] {
    const Tensor from = device_bytes(Detours::kMax + 1);
    const Tensor to = device_bytes(Detours::kMax + 1);
    EXPECT_FALSE(detour(between(to, from, Detours::kMax + 1), {}));
    EXPECT_TRUE(detour(between(to, from, Detours::kMax), {}));
  });
}

/// Pinned buffers stay until the process ends: a program that makes stream after stream keeps no more than these.
TEST_F(CudaDetours, ThereAreNoMoreThanAFewStreams) {
  in_child([] {
    const CudaCalls cu(0);
    const Tensor from = device_bytes(kRoom);
    const Tensor to = device_bytes(kRoom);
    std::size_t taken = 0;
    for (std::size_t i = 0; i < 2 * Detours::kMaxStreams; ++i)
      taken += detour(between(to, from, 7), Stream{cu.stream()}) ? 1 : 0;
    EXPECT_EQ(taken, Detours::kMaxStreams);
    EXPECT_NO_THROW(backend(DeviceType::cuda).copy_aside(between(to, from, 7), Stream{cu.stream()}));
  });
}

TEST_F(CudaDetours, ACapturedStreamTakesNone) {
  in_child([] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor from = device_bytes(kRoom);
    const Tensor to = device_bytes(kRoom);
    ASSERT_EQ(cu.cuStreamBeginCapture(stream, testing::CU_STREAM_CAPTURE_MODE_GLOBAL),
              testing::CUDA_SUCCESS);
    EXPECT_FALSE(detour(between(to, from, 7), Stream{stream}));
    testing::CUgraph graph = nullptr;
    EXPECT_EQ(cu.cuStreamEndCapture(stream, &graph), testing::CUDA_SUCCESS);
  });
}

TEST_F(CudaDetours, WithoutMemoryToPinTheyAreMadeTheOtherWay) {
  if (!testing::is_simulated()) GTEST_SKIP() << "wants the simulated driver, which fails on demand";
  in_child([] {
    const CudaCalls cu(0);
    const Tensor from = device_bytes(kRoom);
    const Tensor to = device_bytes(kRoom);
    testing::fill(cu, from, 5, nullptr);
    cu.sim_fail("cuMemHostRegister", 2, 0, -1);
    EXPECT_FALSE(detour(between(to, from, 7), {}));
    backend(DeviceType::cuda).copy_aside(between(to, from, 7), {});
    EXPECT_EQ(element<unsigned char>(to, 6), 5);
  });
}

}  // namespace
}  // namespace onecopy
