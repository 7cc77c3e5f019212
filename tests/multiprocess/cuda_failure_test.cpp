// SPDX-License-Identifier: Apache-2.0
// A device that fails while its process lives. After the error nothing works on it in this process, and the rest of
// its streams' work is never done.
#include <gtest/gtest.h>

#include <optional>

#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/child.h"
#include "support/cuda_kernel.h"
#include "support/cuda_streams.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "support/stderr_text.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using testing::close_with;
using testing::CopyByte;
using testing::CudaCalls;
using testing::device_bytes;
using testing::element;
using testing::eventually;
using testing::expect_refusal;
using testing::fill;
using testing::Gate;
using testing::JoinedChild;
using testing::kCuda0;
using testing::Shared;
using testing::StderrText;

using GateWord = std::atomic<std::uint64_t>;

/// Blocks the stream until the word is 1. Uses no host function, since one thread may run the host functions of all
/// streams.
void close_with_word(const CudaCalls& cu, testing::CUstream stream, GateWord& gate) {
  testing::CUdeviceptr at = 0;
  EXPECT_EQ(cu.cuMemHostRegister(&gate, sizeof gate, testing::kHostRegisterMapped), testing::CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemHostGetDevicePointer(&at, &gate, 0), testing::CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamWaitValue64(stream, at, 1, testing::CU_STREAM_WAIT_VALUE_GEQ),
            testing::CUDA_SUCCESS);
}

/// The first device of this process, and a stream of its in which it fails.
struct FailingDevice {
  FailingDevice() {
    cu.use(0);
    kernel.emplace(cu);
    stream = cu.stream();
  }
  /// Once the gate is open. Later work of the stream is never done.
  void fail_behind(Gate& gate) {
    close_with(cu, stream, gate);
    kernel->fail(stream);
  }

  const CudaCalls cu;
  std::optional<CopyByte> kernel;
  testing::CUstream stream = nullptr;
};

class CudaFailure : public testing::OnCuda {
 protected:
  /// Shares a tensor in the order of a stream in which the device fails once the gate is open, and lives on.
  void share_and_fail() {
    FailingDevice device;
    const Tensor tensor = device_bytes(4096);
    device.fail_behind(*gate);
    note->write(share(tensor, {.stream = Stream{device.stream}}).to_text());
    note->reach(3);
  }

  testing::Watchdog watchdog;
};

TEST_F(CudaFailure, OfALivingSharersDeviceLeavesNoStreamWaitingAndIsSaid) {
  JoinedChild owner([&] { share_and_fail(); });
  JoinedChild borrower([&] {
    const StderrText log;
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Handle handle = Handle::from_text(note->read());
    const Tensor tensor = open(handle, {.stream = Stream{stream}});
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY);
    gate->open = true;
    EXPECT_TRUE(eventually([&] { return cu.cuStreamQuery(stream) == testing::CUDA_SUCCESS; }));
    expect_refusal(ErrorCode::peer_died, {"failed with CUDA error 700", "half written"},
                   [&] { open(handle, {.stream = Stream{stream}}); });
    EXPECT_TRUE(log.says("failed with CUDA error 700 before its streams had written")) << log.read();
    note->step = 3;
  });
}

TEST_F(CudaFailure, OfALivingSharersDeviceLeavesNoHostWaiting) {
  if (!testing::is_simulated()) GTEST_SKIP() << "takes stream memory operations away";
  ::setenv("ONECOPY_SIM_CUDA_MISSING", "cuStreamWriteValue64,cuStreamWaitValue64", 1);
  JoinedChild owner([&] { share_and_fail(); });
  JoinedChild borrower([&] {
    std::thread opener([&] {
      EXPECT_TRUE(eventually([] { return stats().host_waits == 1; }));
      gate->open = true;
    });
    expect_refusal(ErrorCode::peer_died, {"failed with CUDA error 700", "half written"},
                   [&] { open(Handle::from_text(note->read()), {.stream = Stream{}}); });
    opener.join();
    note->step = 3;
  });
  ::unsetenv("ONECOPY_SIM_CUDA_MISSING");
}

TEST_F(CudaFailure, OfOneDeviceIsOneOfAllDevicesOfItsProcess) {
  if (testing::cuda_devices() < 2) GTEST_SKIP() << "wants two devices";
  Shared<GateWord> other_gate;
  JoinedChild owner([&] {
    const CudaCalls cu;
    cu.use(1);
    const auto stream = cu.stream();
    const Tensor tensor = device_bytes(4096, {DeviceType::cuda, 1});
    close_with_word(cu, stream, *other_gate);
    fill(cu, tensor, 9, stream);
    note->write(share(tensor, {.stream = Stream{stream}}).to_text());
    FailingDevice device;
    device.fail_behind(*gate);
    note->reach(2);
  });
  JoinedChild borrower([&] {
    const CudaCalls cu;
    cu.use(1);
    const auto stream = cu.stream();
    const Handle handle = Handle::from_text(note->read());
    const Tensor tensor = open(handle, {.stream = Stream{stream}});
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY);
    gate->open = true;
    EXPECT_TRUE(eventually([&] { return cu.cuStreamQuery(stream) == testing::CUDA_SUCCESS; }));
    expect_refusal(ErrorCode::peer_died, {"failed with CUDA error 700", "half written"},
                   [&] { open(handle, {.stream = Stream{stream}}); });
    *other_gate = 1;
    note->step = 2;
  });
}

TEST_F(CudaFailure, IsWhatLaterMarksOnTheDeviceSay) {
  if (!testing::is_simulated()) GTEST_SKIP() << "breaks a device in many ways";
  for (const int code : {214, 226, 700, 719, 721, 810, 911})
    testing::in_child([code] {
      const CudaCalls cu(0);
      const auto stream = cu.stream();
      const Tensor tensor = device_bytes(4096);
      share(tensor, {.stream = Stream{stream}});
      cu.sim_break(0, code);
      try {
        share(tensor, {.stream = Stream{stream}});
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.vendor_code(), code);
        EXPECT_EQ(error.domain(), ErrorDomain::cuda);
        EXPECT_NE(std::string(error.what()).find("cuda:0 has failed"), std::string::npos) << error.what();
      }
    });
}

TEST_F(CudaFailure, WithinOneProcessIsAnErrorForWhoWaitsForTheDevice) {
  testing::in_child([&] {
    const StderrText log;
    FailingDevice device;
    const Tensor tensor = device_bytes(4096);
    device.fail_behind(*gate);
    const Handle handle = share(tensor, {.stream = Stream{device.stream}});
    gate->open = true;
    EXPECT_TRUE(log.says("cuda:0 has failed")) << log.read();
    expect_refusal(ErrorCode::system, {"cuda:0 has failed", "700"},
                   [&] { open(handle, {.stream = Stream{}}); });
  });
}

/// The device may still write.
TEST_F(CudaFailure, KeepsWhatIsGivenBackInItsStreamsFromBeingUsedAgain) {
  testing::in_child([&] {
    const StderrText log;
    FailingDevice device;
    Tensor before = record_stream(device_bytes(4096), Stream{device.stream});
    Tensor after = record_stream(device_bytes(4096), Stream{device.stream});
    const void* const given_back[] = {before.data(), after.data()};
    device.fail_behind(*gate);
    before.release();
    gate->open = true;
    EXPECT_TRUE(log.says("cuda:0 has failed")) << log.read();
    after.release();
    collect();
    EXPECT_EQ(stats().live_blocks, 2u);
    for (const Tensor& other : {device_bytes(4096), device_bytes(4096)})
      EXPECT_TRUE(other.data() != given_back[0] && other.data() != given_back[1]);
    EXPECT_EQ(log.read().find("out of order"), std::string::npos) << log.read();
  });
}

/// As at the exit of a process: its driver ends before static objects give back the last tensors.
TEST_F(CudaFailure, ADriverThatHasEndedTakesTensorsBackWithoutAWord) {
  if (!testing::is_simulated()) GTEST_SKIP() << "ends the simulated driver";
  JoinedChild owner([&] {
    const Tensor tensor = device_bytes(4096);
    note->write(share(tensor).to_text());
    note->reach(3);
  });
  JoinedChild borrower([&] {
    const StderrText log;
    const CudaCalls cu;
    cu.use(0);
    Tensor tensor = open(Handle::from_text(note->read()), {.stream = Stream{cu.stream()}});
    cu.sim_shut_down();
    EXPECT_EQ(cu.cuCtxPushCurrent(nullptr), testing::CUDA_ERROR_DEINITIALIZED);
    tensor.release();
    EXPECT_EQ(log.read(), "");
    note->step = 3;
  });
}

}  // namespace
}  // namespace onecopy
