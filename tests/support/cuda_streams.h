// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "device/backend.h"
#include "onecopy/share/share.h"
#include "support/cuda_calls.h"
#include "support/note.h"

namespace onecopy::testing {

inline constexpr Device kCuda0{DeviceType::cuda, 0};

/// A gate in shared memory that replaces a long-running kernel: a stream waits until a process opens the gate.
struct Gate {
  std::atomic<bool> open{false};
};

/// Makes later work of the stream wait until the gate is open.
inline void close_with(const CudaCalls& cu, CUstream stream, Gate& gate) {
  const auto wait = [](void* at) {
    while (!static_cast<Gate*>(at)->open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_EQ(cu.cuLaunchHostFunc(stream, wait, &gate), CUDA_SUCCESS);
}

inline Tensor device_bytes(std::int64_t count, Device device = kCuda0) {
  return empty(Layout(DType::u8, {count}), device);
}

inline void fill(const CudaCalls& cu, const Tensor& tensor, unsigned char value, CUstream stream) {
  EXPECT_EQ(
      cu.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(tensor.data()), value, tensor.nbytes(), stream),
      CUDA_SUCCESS);
}

/// Returns the number of devices of this machine, which a child process counts.
inline std::size_t cuda_devices() {
  Shared<std::atomic<std::size_t>> count;
  in_child([&] { *count = backend(DeviceType::cuda).devices().size(); });
  return *count;
}

inline bool is_simulated() {
  return std::string(std::getenv("ONECOPY_CUDA_DRIVER")).find("simulators") != std::string::npos;
}

/// A test on CUDA devices, with a note and a gate for its processes.
class OnCuda : public ::testing::Test {
 protected:
  explicit OnCuda(std::size_t devices = 1) : devices_(devices) {}
  void SetUp() override {
    if (cuda_devices() < devices_)
      GTEST_SKIP() << (devices_ == 1 ? "no CUDA device on this machine" : "needs two CUDA devices");
  }
  /// Shares a new tensor in the order of a stream that the gate holds up, and writes its handle into the note.
  Tensor share_behind_gate(const CudaCalls& cu, CUstream stream) {
    Tensor tensor = device_bytes(4096);
    close_with(cu, stream, *gate);
    note->write(share(tensor, {.stream = Stream{stream}}).to_text());
    return tensor;
  }

  Shared<Note> note;
  Shared<Gate> gate;

 private:
  const std::size_t devices_;
};

}  // namespace onecopy::testing
