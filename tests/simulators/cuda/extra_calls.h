// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/driver_api.h"
#include "device/cuda/graph_api.h"

// Calls that frameworks and tests use and the library does not. Columns as in ONECOPY_CUDA_CALLS.
// clang-format off
#define ONECOPY_CUDA_EXTRA_CALLS(X)                                                                       \
  ONECOPY_CUDA_GRAPH_CALLS(X)                                                                             \
  X(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010, (char*, int, CUdevice))                               \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, (CUdevice))                           \
  X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, (CUcontext))                                                  \
  X(cuCtxGetDevice, cuCtxGetDevice, 2000, (CUdevice*))                                                    \
  X(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000, (CUcontext))                                    \
  X(cuPointerGetAttribute, cuPointerGetAttribute, 4000, (void*, int, CUdeviceptr))                        \
  X(cuMemAllocManaged, cuMemAllocManaged, 6000, (CUdeviceptr*, std::size_t, unsigned))                    \
  X(cuMemHostAlloc, cuMemHostAlloc, 2020, (void**, std::size_t, unsigned))                                \
  X(cuMemGetAccess, cuMemGetAccess, 10020, (unsigned long long*, const CUmemLocation*, CUdeviceptr))      \
  X(cuMemcpy, cuMemcpy, 4000, (CUdeviceptr, CUdeviceptr, std::size_t))                                    \
  X(cuMemcpyHtoD, cuMemcpyHtoD_v2, 3020, (CUdeviceptr, const void*, std::size_t))                         \
  X(cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020, (void*, CUdeviceptr, std::size_t))                               \
  X(cuMemcpyDtoD, cuMemcpyDtoD_v2, 3020, (CUdeviceptr, CUdeviceptr, std::size_t))                         \
  X(cuMemsetD8, cuMemsetD8_v2, 3020, (CUdeviceptr, unsigned char, std::size_t))                           \
  X(cuStreamGetCtx, cuStreamGetCtx, 9020, (CUstream, CUcontext*))                                         \
  X(cuEventRecordWithFlags, cuEventRecordWithFlags, 11010, (CUevent, CUstream, unsigned))                 \
  X(cuIpcGetEventHandle, cuIpcGetEventHandle, 4010, (CUipcEventHandle*, CUevent))                         \
  X(cuIpcOpenEventHandle, cuIpcOpenEventHandle, 4010, (CUevent*, CUipcEventHandle))                       \
  X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, (CUstream, int))                                \
  X(cuStreamEndCapture, cuStreamEndCapture, 10000, (CUstream, CUgraph*))                                  \
  X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040,                                      \
    (CUgraphExec*, CUgraph, unsigned long long))                                                          \
  X(cuGraphDestroy, cuGraphDestroy, 10000, (CUgraph))                                                     \
  X(cuGraphExecDestroy, cuGraphExecDestroy, 10000, (CUgraphExec))
// clang-format on
