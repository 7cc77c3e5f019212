// SPDX-License-Identifier: Apache-2.0
// Streams of Ascend devices that are being captured: nothing says how far they have come. A host function that
// waits for a gate stands in for a kernel that takes long.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "device/backend.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/ascend_calls.h"
#include "support/eventually.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::AclCalls;
using testing::eventually;
using testing::expect_refusal;
using testing::in_npu_child;

constexpr int kThreadLocal = 1;
constexpr Device kFirst{DeviceType::npu, 0};
constexpr Device kSecond{DeviceType::npu, 1};

Tensor ascend_bytes(std::int64_t count) { return empty(Layout(DType::u8, {count}), kFirst); }

void close_on_ascend(const AclCalls& acl, void* stream, std::atomic<bool>& gate) {
  const auto wait = [](void* at) {
    while (!*static_cast<std::atomic<bool>*>(at)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_EQ(acl.aclrtLaunchHostFunc(stream, wait, &gate), ascend::ACL_SUCCESS);
}

void end_capture(const AclCalls& acl, void* stream) {
  void* model = nullptr;
  EXPECT_EQ(acl.aclmdlRICaptureEnd(stream, &model), ascend::ACL_SUCCESS) << "nothing spoilt it";
}

class AscendOrder : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::is_simulated_ascend()) GTEST_SKIP() << "a capture was never tried on a real device";
  }
};

TEST_F(AscendOrder, WhatIsDroppedWhileItsStreamIsCapturedIsKeptUntilTheStreamHasComePast) {
  in_npu_child({}, [] {
    const AclCalls acl(0);
    const auto stream = acl.stream();
    std::atomic<bool> gate{false};
    Tensor tensor = record_stream(ascend_bytes(4096), Stream{stream});
    close_on_ascend(acl, stream, gate);
    EXPECT_EQ(acl.aclmdlRICaptureBegin(stream, kThreadLocal), ascend::ACL_SUCCESS);
    tensor.release();
    collect();
    EXPECT_EQ(stats().live_blocks, 1u) << "nothing says yet how far the stream has come";
    end_capture(acl, stream);
    EXPECT_EQ(stats().live_blocks, 1u) << "the stream is before it";
    gate = true;
    EXPECT_TRUE(eventually([] { return stats().live_blocks == 0; }));
  });
}

TEST_F(AscendOrder, AStreamThatIsBeingCapturedIsRefused) {
  in_npu_child({}, [] {
    const AclCalls acl(0);
    const auto stream = acl.stream();
    const Tensor tensor = ascend_bytes(4096);
    EXPECT_EQ(acl.aclmdlRICaptureBegin(stream, kThreadLocal), ascend::ACL_SUCCESS);
    EXPECT_TRUE(backend(DeviceType::npu).is_captured(0, Stream{stream}));
    expect_refusal(ErrorCode::unsupported, {"captured"},
                   [&] { share(tensor, {.stream = Stream{stream}}); });
    end_capture(acl, stream);
    EXPECT_FALSE(backend(DeviceType::npu).is_captured(0, Stream{stream}));
    EXPECT_NO_THROW(share(tensor, {.stream = Stream{stream}}));
  });
}

void expect_not_captured(const char* peers, bool to_the_host) {
  in_npu_child({{"ONECOPY_SIM_ASCEND_PEERS", peers}}, [to_the_host] {
    const AclCalls acl;
    acl.use(1);
    const auto stream = acl.stream();
    void* host = nullptr;
    EXPECT_EQ(acl.aclrtMallocHost(&host, 16), ascend::ACL_SUCCESS);
    const Tensor from = ascend_bytes(16);
    const Tensor seen = to_the_host ? use_on(from, kSecond) : Tensor{};
    const Tensor other = empty(Layout(DType::u8, {16}), kSecond);
    EXPECT_EQ(acl.aclmdlRICaptureBegin(stream, kThreadLocal), ascend::ACL_SUCCESS);
    expect_refusal(ErrorCode::unsupported, {"captured"}, [&] {
      if (to_the_host) copy_bytes({host, kCpu, seen.data(), kSecond, 16}, Stream{stream});
      else copy_bytes({other.data(), kSecond, from.data(), kFirst, 16}, Stream{stream});
    });
    end_capture(acl, stream);
  });
}

/// The memory they go by way of is freed when they return, and a graph would come to it later.
TEST_F(AscendOrder, CopiesByWayOfOtherMemoryAreNotCaptured) {
  expect_not_captured("all", true);
  expect_not_captured("none", false);
}

/// A lost device may still write.
TEST_F(AscendOrder, OfADeviceThatIsLostKeepsWhatIsGivenBackInItFromBeingUsedAgain) {
  in_npu_child({}, [] {
    const AclCalls acl(0);
    const auto stream = acl.stream();
    Tensor tensor = record_stream(ascend_bytes(4096), Stream{stream});
    constexpr int kLostHeartbeat = 507010;
    acl.sim_fail("aclrtSynchronizeStream", kLostHeartbeat, 0, -1);
    tensor.release();
    collect();
    EXPECT_EQ(stats().live_blocks, 1u);
    expect_refusal(ErrorCode::system, {"npu:0 has failed", "507010"},
                   [&] { share(ascend_bytes(4096), {.stream = Stream{stream}}); });
  });
}

}  // namespace
}  // namespace onecopy
