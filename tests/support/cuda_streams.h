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

namespace onecopy::testing {

inline constexpr Device kCuda0{DeviceType::cuda, 0};

/// Stands in for a kernel that takes long: it ends when a process opens it. In memory that is shared.
struct Gate {
  std::atomic<bool> open{false};
};

/// Later work of the stream waits until the gate is open.
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

/// Devices that this machine has, found out in a process of its own.
inline std::size_t cuda_devices() {
  Shared<std::atomic<std::size_t>> count;
  in_child([&] { *count = backend(DeviceType::cuda).devices().size(); });
  return *count;
}

inline bool is_simulated() {
  return std::string(std::getenv("ONECOPY_CUDA_DRIVER")).find("simulators") != std::string::npos;
}

}  // namespace onecopy::testing
