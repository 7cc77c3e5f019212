// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/cuda_calls.h"

namespace onecopy::testing {

/// What a kernel of that device finds there. Copies show less: the driver does them by whichever device it likes.
inline int read_by_kernel(const CudaCalls& cu, int ordinal, const void* at) {
  constexpr char kImage[] = R"(.version 7.0
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
  cu.use(ordinal);
  void* module = nullptr;
  void* kernel = nullptr;
  EXPECT_EQ(cu.cuModuleLoadData(&module, kImage), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuModuleGetFunction(&kernel, module, "copy_byte"), CUDA_SUCCESS);
  CUdeviceptr to = cu.memory(1);
  auto from = reinterpret_cast<CUdeviceptr>(at);
  void* parameters[] = {&to, &from};
  EXPECT_EQ(cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  return cu.read(to);
}

}  // namespace onecopy::testing
