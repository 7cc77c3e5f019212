// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "driver_api.h"

/// The part of cuda.h that concerns captured graphs and kernels. See driver_api.h.
namespace onecopy::cuda {

using CUgraphNode = struct GraphNodeTag*;

struct CUgraphEdgeData {
  unsigned char from_port;
  unsigned char to_port;
  unsigned char type;
  unsigned char reserved[5];
};

struct CUDA_KERNEL_NODE_PARAMS {  // _v2, of CUDA 12
  void* func;
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  void** kernelParams;
  void** extra;
  void* kern;
  CUcontext ctx;
};

// The columns are the same as in ONECOPY_CUDA_CALLS.
// clang-format off
#define ONECOPY_CUDA_GRAPH_CALLS(X)                                                                       \
  X(cuModuleLoadData, cuModuleLoadData, 2000, (void**, const void*))                                      \
  X(cuModuleGetFunction, cuModuleGetFunction, 2000, (void**, void*, const char*))                         \
  X(cuLaunchKernel, cuLaunchKernel, 4000,                                                                 \
    (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**)) \
  X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3, 12030,                                             \
    (CUstream, int*, unsigned long long*, CUgraph*, const CUgraphNode**, const CUgraphEdgeData**, std::size_t*)) \
  X(cuGraphLaunch, cuGraphLaunch, 10000, (CUgraphExec, CUstream))                                         \
  X(cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams_v2, 12000,                             \
    (CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*))
// clang-format on

}  // namespace onecopy::cuda
