// SPDX-License-Identifier: Apache-2.0
// Inputs that pinned memory and copies to a card refuse, each with a reason; and captures, which nothing of it spoils.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "device/backend.h"
#include "device/capture_gate.h"
#include "onecopy/core/error.h"
#include "onecopy/share/pin.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "onecopy/share/to_device.h"
#include "support/cuda_streams.h"
#include "support/numbers.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::CudaCalls;
using testing::CUstream;
using testing::device_bytes;
using testing::eventually;
using testing::expect_refusal;
using testing::filled_bytes;
using testing::in_child;
using testing::in_child_with;
using testing::JoinedChild;
using testing::kCuda0;

constexpr std::int64_t kBytes = 1 << 20;
constexpr Device kNpu{DeviceType::npu, 0};

unsigned char first_byte(const Tensor& there) {
  unsigned char byte = 0;
  copy_bytes_and_wait({&byte, kCpu, there.data(), there.device(), 1});
  return byte;
}

using PinnedRefusals = testing::OnCuda;

TEST_F(PinnedRefusals, ACardThatIsNotThereIsNamed) {
  in_child([] {
    const Tensor here = filled_bytes(kBytes, 1);
    constexpr Device kNone{DeviceType::cuda, 9};
    expect_refusal(ErrorCode::invalid_argument, {"cuda:9"}, [&] { pin(here, kNone); });
    expect_refusal(ErrorCode::invalid_argument, {"cuda:9"},
                   [&] { to_device(std::vector<Tensor>{here}, kNone); });
    EXPECT_FALSE(is_pinned(here));
    EXPECT_EQ(stats().pinned_bytes, 0u);
    pin(here);
    EXPECT_TRUE(is_pinned(here)) << "nothing is left of the refusal";
  });
}

/// A real driver takes it for copies.
TEST_F(PinnedRefusals, AStreamOfAnotherCardIsRefusedOrUsedAndNothingIsLost) {
  if (testing::cuda_devices() < 2) GTEST_SKIP() << "needs two CUDA devices";
  in_child([] {
    const CudaCalls cu;
    cu.use(1);
    const Stream others{cu.stream()};
    cu.use(0);
    const std::vector<Tensor> here{filled_bytes(kBytes, 3, true)};
    try {
      const Tensor there = to_device(here, kCuda0, others).front();
      backend(DeviceType::cuda).synchronize(1, others);
      EXPECT_EQ(first_byte(there), 3);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()), "");
    }
    EXPECT_EQ(first_byte(to_device(here, kCuda0).front()), 3);
  });
}

/// As a loader beside a training step that is captured: batches are opened, pinned, copied and dropped.
TEST_F(PinnedRefusals, CapturesBesideARunningLoaderAreNeverSpoilt) {
  JoinedChild worker([&] {
    const Tensor batch = filled_bytes(kBytes, 1);
    note->write(share(batch).to_text());
    note->serve_until(2);
  });
  JoinedChild trainer([&] {
    const CudaCalls cu(0);
    const CUstream stream = cu.stream();
    const Tensor there = device_bytes(kBytes);
    const Handle handle = Handle::from_text(note->read());
    std::atomic<bool> is_over{false};
    std::atomic<int> batches{0};
    std::thread loader([&] {
      cu.use(0);
      const Stream own{cu.stream()};
      for (; !is_over; ++batches) {
        const Tensor batch = open(handle, {.pinned = true});
        const Tensor large = filled_bytes(40 << 20, 2, batches % 8 == 0);
        copy_bytes({there.data(), kCuda0, batch.data(), kCpu, kBytes}, own);
        if (batches % 16 == 0) trim();
      }
    });
    const Tensor written = device_bytes(kBytes);
    int spoilt = 0;
    for (int i = 0; i < 1000 || batches < 32; ++i) {
      CaptureGate::get().begin();
      EXPECT_EQ(cu.cuStreamBeginCapture(stream, testing::CU_STREAM_CAPTURE_MODE_GLOBAL),
                testing::CUDA_SUCCESS);
      fill(cu, written, 3, stream);
      testing::CUgraph graph = nullptr;
      if (cu.cuStreamEndCapture(stream, &graph) != testing::CUDA_SUCCESS) ++spoilt;
      else cu.cuGraphDestroy(graph);
      CaptureGate::get().end();
    }
    EXPECT_EQ(spoilt, 0) << "of 1,000 captures, with " << batches << " batches beside them";
    is_over = true;
    loader.join();
    note->step = 2;
  });
}

TEST(PinnedOnAscend, MemoryIsPinnedCopiedSeenInPlaceAndUnpinned) {
  in_child_with({{"ONECOPY_CUDA_DRIVER", "libnot-there.so.1"}}, [] {
    if (backend(DeviceType::npu).devices().empty()) return;
    const Tensor here = filled_bytes(kBytes, 4);
    pin(here, kNpu);
    EXPECT_TRUE(is_pinned(here));
    EXPECT_NE(stats().pinned_bytes, 0u);
    const Tensor there = to_device(std::vector<Tensor>{here}, kNpu).front();
    EXPECT_EQ(first_byte(there), 4);
    EXPECT_EQ(stats().pageable_copies, 1u) << "first_byte() has a byte of its own";
    const Tensor view = view_on(here, kNpu);
    EXPECT_EQ(view.device(), kNpu);
    EXPECT_EQ(first_byte(view), 4);
  });
}

TEST(PinnedOnAscend, ADroppedTensorIsUsedAgainOnceAThreadHasWaitedForTheDevice) {
  in_child_with({{"ONECOPY_CUDA_DRIVER", "libnot-there.so.1"}}, [] {
    if (backend(DeviceType::npu).devices().empty()) return;
    Tensor here = filled_bytes(40 << 20, 4);
    pin(here, kNpu);
    const Tensor there = to_device(std::vector<Tensor>{here}, kNpu).front();
    here.release();
    EXPECT_EQ(stats().late_releases, 1u);
    EXPECT_TRUE(eventually([] { return trim(), stats().pinned_bytes == 0; }));
    EXPECT_EQ(first_byte(there), 4);
  });
}

}  // namespace
}  // namespace onecopy
