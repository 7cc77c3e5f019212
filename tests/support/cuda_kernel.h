// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/cuda_calls.h"

namespace onecopy::testing {

/// A kernel of the current device that copies a byte. The driver may run a copy on any device, but the kernel can read
/// only memory that its own device can access.
class CopyByte {
 public:
  explicit CopyByte(const CudaCalls& cu) : cu_(cu) {
    void* module = nullptr;
    EXPECT_EQ(cu_.cuModuleLoadData(&module, kImage), CUDA_SUCCESS);
    EXPECT_EQ(cu_.cuModuleGetFunction(&kernel_, module, "copy_byte"), CUDA_SUCCESS);
    const CUdeviceptr at = cu_.memory(1);
    launch(at, at, nullptr);  // the first launch may wait for all work of the device
    EXPECT_EQ(cu_.cuCtxSynchronize(), CUDA_SUCCESS);
  }

  void launch(CUdeviceptr to, CUdeviceptr from, CUstream stream) const {
    void* parameters[] = {&to, &from};
    EXPECT_EQ(cu_.cuLaunchKernel(kernel_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr), CUDA_SUCCESS);
  }
  /// Launches a kernel that reads an invalid address. When the stream runs it, the device fails for this process.
  void fail(CUstream stream) const {
    constexpr CUdeviceptr kNobodys = 64;
    launch(kNobodys, kNobodys, stream);
  }

 private:
  static constexpr char kImage[] = R"(.version 7.0
.target sm_50
.address_size 64
.visible .entry copy_byte(.param .u64 to, .param .u64 from)
{
  .reg .u64 %address<4>;
  .reg .u16 %byte;
  ld.param.u64 %address0, [to];
  ld.param.u64 %address1, [from];
  cvta.to.global.u64 %address2, %address0;
  cvta.to.global.u64 %address3, %address1;
  ld.global.u8 %byte, [%address3];
  st.global.u8 [%address2], %byte;
  ret;
}
)";

  const CudaCalls& cu_;
  void* kernel_ = nullptr;
};

/// Returns the byte that a kernel of the device reads at the address.
inline int read_by_kernel(const CudaCalls& cu, int ordinal, const void* at) {
  cu.use(ordinal);
  const CUdeviceptr to = cu.memory(1);
  CopyByte(cu).launch(to, reinterpret_cast<CUdeviceptr>(at), nullptr);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  return cu.read(to);
}

}  // namespace onecopy::testing
