// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "driver_api.h"

/// The part of cuda.h that is about captured graphs and kernels. As driver_api.h.
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

struct CUDA_MEMCPY3D {
  std::size_t srcXInBytes, srcY, srcZ, srcLOD;
  unsigned srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  void* srcArray;
  void* reserved0;
  std::size_t srcPitch, srcHeight;
  std::size_t dstXInBytes, dstY, dstZ, dstLOD;
  unsigned dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  void* dstArray;
  void* reserved1;
  std::size_t dstPitch, dstHeight;
  std::size_t WidthInBytes, Height, Depth;
};

struct CUDA_MEMSET_NODE_PARAMS {
  CUdeviceptr dst;
  std::size_t pitch;
  unsigned value;
  unsigned elementSize;
  std::size_t width;
  std::size_t height;
};

inline constexpr int CU_GRAPH_NODE_TYPE_KERNEL = 0;
inline constexpr int CU_GRAPH_NODE_TYPE_MEMCPY = 1;
inline constexpr int CU_GRAPH_NODE_TYPE_MEMSET = 2;
inline constexpr int CU_GRAPH_NODE_TYPE_EMPTY = 5;
inline constexpr unsigned CU_MEMORYTYPE_ARRAY = 3;
inline void* const kLaunchParamEnd = nullptr;
inline void* const kLaunchParamBufferPointer = reinterpret_cast<void*>(1);
inline void* const kLaunchParamBufferSize = reinterpret_cast<void*>(2);

// Columns as in ONECOPY_CUDA_CALLS.
// clang-format off
#define ONECOPY_CUDA_GRAPH_CALLS(X)                                                                       \
  X(cuModuleLoadData, cuModuleLoadData, 2000, (void**, const void*))                                      \
  X(cuModuleGetFunction, cuModuleGetFunction, 2000, (void**, void*, const char*))                         \
  X(cuLaunchKernel, cuLaunchKernel, 4000,                                                                 \
    (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**)) \
  X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3, 12030,                                             \
    (CUstream, int*, unsigned long long*, CUgraph*, const CUgraphNode**, const CUgraphEdgeData**, std::size_t*)) \
  X(cuGraphLaunch, cuGraphLaunch, 10000, (CUgraphExec, CUstream))                                         \
  X(cuGraphGetNodes, cuGraphGetNodes, 10000, (CUgraph, CUgraphNode*, std::size_t*))                       \
  X(cuGraphGetEdges, cuGraphGetEdges_v2, 12030,                                                           \
    (CUgraph, CUgraphNode*, CUgraphNode*, CUgraphEdgeData*, std::size_t*))                                \
  X(cuGraphNodeGetType, cuGraphNodeGetType, 10000, (CUgraphNode, int*))                                   \
  X(cuGraphKernelNodeGetParams, cuGraphKernelNodeGetParams_v2, 12000,                                     \
    (CUgraphNode, CUDA_KERNEL_NODE_PARAMS*))                                                              \
  X(cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams_v2, 12000,                             \
    (CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*))                                           \
  X(cuGraphMemcpyNodeGetParams, cuGraphMemcpyNodeGetParams, 10000, (CUgraphNode, CUDA_MEMCPY3D*))         \
  X(cuGraphExecMemcpyNodeSetParams, cuGraphExecMemcpyNodeSetParams, 10020,                                \
    (CUgraphExec, CUgraphNode, const CUDA_MEMCPY3D*, CUcontext))                                          \
  X(cuGraphMemsetNodeGetParams, cuGraphMemsetNodeGetParams, 10000,                                        \
    (CUgraphNode, CUDA_MEMSET_NODE_PARAMS*))                                                              \
  X(cuGraphExecMemsetNodeSetParams, cuGraphExecMemsetNodeSetParams, 10020,                                \
    (CUgraphExec, CUgraphNode, const CUDA_MEMSET_NODE_PARAMS*, CUcontext))                                \
  X(cuFuncGetName, cuFuncGetName, 12030, (const char**, void*))                                           \
  X(cuFuncGetParamInfo, cuFuncGetParamInfo, 12040, (void*, std::size_t, std::size_t*, std::size_t*))      \
  X(cuKernelGetName, cuKernelGetName, 12030, (const char**, void*))                                       \
  X(cuKernelGetParamInfo, cuKernelGetParamInfo, 12040, (void*, std::size_t, std::size_t*, std::size_t*))
// clang-format on

}  // namespace onecopy::cuda
