// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/driver_api.h"
#include "device/cuda/graph_api.h"

// Types and constants that only tests use.
namespace onecopy::cuda {

struct CUipcEventHandle {
  char reserved[64];
};
inline constexpr CUresult CUDA_ERROR_ALREADY_MAPPED = 208;
inline constexpr CUresult CUDA_ERROR_NOT_MAPPED = 211;
inline constexpr CUresult CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705;
inline constexpr CUresult CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713;
inline constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903;
inline constexpr CUresult CUDA_ERROR_CAPTURED_EVENT = 907;
inline constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908;
inline constexpr CUresult CUDA_ERROR_UNKNOWN = 999;
inline constexpr int CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41;
inline constexpr int CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75;
inline constexpr int CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76;
inline constexpr int CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125;
inline constexpr int CU_POINTER_ATTRIBUTE_CONTEXT = 1;
inline constexpr int CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3;
inline constexpr int CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11;
inline constexpr int CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12;
inline constexpr int CU_POINTER_ATTRIBUTE_MAPPED = 13;
inline constexpr unsigned CU_MEMORYTYPE_HOST = 1;
inline constexpr int CU_MEM_ACCESS_FLAGS_PROT_NONE = 0;
inline constexpr unsigned CU_STREAM_DEFAULT = 0;
inline constexpr unsigned CU_EVENT_INTERPROCESS = 4;
inline constexpr unsigned CU_STREAM_WAIT_VALUE_EQ = 1;
inline constexpr unsigned CU_STREAM_WAIT_VALUE_AND = 2;
inline constexpr int CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2;
inline constexpr int CU_STREAM_CAPTURE_MODE_GLOBAL = 0;
inline constexpr int CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1;
inline constexpr int CU_GET_PROC_ADDRESS_SUCCESS = 0;
inline constexpr int CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1;
inline constexpr int CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2;

}  // namespace onecopy::cuda

// Calls that frameworks and tests use and the library does not. Columns as in ONECOPY_CUDA_CALLS.
// clang-format off
#define ONECOPY_CUDA_EXTRA_CALLS(X)                                                                       \
  ONECOPY_CUDA_GRAPH_CALLS(X)                                                                             \
  X(cuMemAllocHost, cuMemAllocHost_v2, 3020, (void**, std::size_t))                                       \
  X(cuMemFreeHost, cuMemFreeHost, 2000, (void*))                                                          \
  X(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020,                \
    (CUmemAllocationProp*, CUmemGenericAllocationHandle))                                                 \
  X(cuStreamDestroy, cuStreamDestroy_v2, 4000, (CUstream))                                                \
  X(cuMemcpyAsync, cuMemcpyAsync, 4000, (CUdeviceptr, CUdeviceptr, std::size_t, CUstream))                \
  X(cuMemsetD8Async, cuMemsetD8Async, 3020, (CUdeviceptr, unsigned char, std::size_t, CUstream))          \
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
