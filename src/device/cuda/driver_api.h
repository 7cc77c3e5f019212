// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// The part of the CUDA driver's C interface that is used here, with the names of cuda.h, so that building needs no
/// CUDA toolkit. tests/unit/simulators/cuda_abi_test.cpp compares it with the real header, if there is one. Nothing is
/// linked: driver.h finds the calls at run time.
namespace onecopy::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
using CUcontext = struct ContextTag*;
using CUstream = struct StreamTag*;
using CUevent = struct EventTag*;
using CUgraph = struct GraphTag*;
using CUgraphExec = struct GraphExecTag*;
using CUhostFn = void (*)(void*);

struct CUuuid {
  char bytes[16];
};
struct CUipcMemHandle {
  char reserved[64];
};
struct CUmemLocation {
  int type;
  int id;
};
struct CUmemcpyAttributes {
  int srcAccessOrder;
  CUmemLocation srcLocHint;
  CUmemLocation dstLocHint;
  unsigned flags;
};
struct CUmemAccessDesc {
  CUmemLocation location;
  int flags;
};
struct CUmemAllocationProp {
  int type;
  int requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};

// Results.
inline constexpr CUresult CUDA_SUCCESS = 0;
inline constexpr CUresult CUDA_ERROR_INVALID_VALUE = 1;
inline constexpr CUresult CUDA_ERROR_OUT_OF_MEMORY = 2;
inline constexpr CUresult CUDA_ERROR_NOT_INITIALIZED = 3;
inline constexpr CUresult CUDA_ERROR_DEINITIALIZED = 4;
inline constexpr CUresult CUDA_ERROR_STUB_LIBRARY = 34;
inline constexpr CUresult CUDA_ERROR_DEVICE_UNAVAILABLE = 46;
inline constexpr CUresult CUDA_ERROR_NO_DEVICE = 100;
inline constexpr CUresult CUDA_ERROR_INVALID_DEVICE = 101;
inline constexpr CUresult CUDA_ERROR_INVALID_CONTEXT = 201;
inline constexpr CUresult CUDA_ERROR_MAP_FAILED = 205;
inline constexpr CUresult CUDA_ERROR_ECC_UNCORRECTABLE = 214;
inline constexpr CUresult CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217;
inline constexpr CUresult CUDA_ERROR_NVLINK_UNCORRECTABLE = 220;
inline constexpr CUresult CUDA_ERROR_CONTAINED = 226;
inline constexpr CUresult CUDA_ERROR_OPERATING_SYSTEM = 304;
inline constexpr CUresult CUDA_ERROR_INVALID_HANDLE = 400;
inline constexpr CUresult CUDA_ERROR_NOT_FOUND = 500;
inline constexpr CUresult CUDA_ERROR_NOT_READY = 600;
inline constexpr CUresult CUDA_ERROR_ILLEGAL_ADDRESS = 700;
inline constexpr CUresult CUDA_ERROR_LAUNCH_TIMEOUT = 702;
inline constexpr CUresult CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704;
inline constexpr CUresult CUDA_ERROR_CONTEXT_IS_DESTROYED = 709;
inline constexpr CUresult CUDA_ERROR_ASSERT = 710;
inline constexpr CUresult CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712;
inline constexpr CUresult CUDA_ERROR_HARDWARE_STACK_ERROR = 714;
inline constexpr CUresult CUDA_ERROR_ILLEGAL_INSTRUCTION = 715;
inline constexpr CUresult CUDA_ERROR_MISALIGNED_ADDRESS = 716;
inline constexpr CUresult CUDA_ERROR_INVALID_ADDRESS_SPACE = 717;
inline constexpr CUresult CUDA_ERROR_INVALID_PC = 718;
inline constexpr CUresult CUDA_ERROR_LAUNCH_FAILED = 719;
inline constexpr CUresult CUDA_ERROR_TENSOR_MEMORY_LEAK = 721;
inline constexpr CUresult CUDA_ERROR_NOT_PERMITTED = 800;
inline constexpr CUresult CUDA_ERROR_NOT_SUPPORTED = 801;
inline constexpr CUresult CUDA_ERROR_SYSTEM_NOT_READY = 802;
inline constexpr CUresult CUDA_ERROR_MPS_CLIENT_TERMINATED = 810;
inline constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900;
inline constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901;
inline constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906;
inline constexpr CUresult CUDA_ERROR_EXTERNAL_DEVICE = 911;

// Device attributes.
inline constexpr int CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91;
inline constexpr int CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102;
inline constexpr int CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103;
inline constexpr int CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED = 113;
inline constexpr int CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122;

// Pointer attributes.
inline constexpr int CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2;
inline constexpr int CU_POINTER_ATTRIBUTE_BUFFER_ID = 7;
inline constexpr int CU_POINTER_ATTRIBUTE_IS_MANAGED = 8;
inline constexpr int CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9;
inline constexpr int CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10;
inline constexpr int CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14;
inline constexpr unsigned CU_MEMORYTYPE_DEVICE = 2;

// Memory.
inline constexpr int CU_MEM_LOCATION_TYPE_DEVICE = 1;
inline constexpr int CU_MEM_ALLOCATION_TYPE_PINNED = 1;
inline constexpr int CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1;
inline constexpr int CU_MEM_ACCESS_FLAGS_PROT_READ = 1;
inline constexpr int CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3;
inline constexpr int CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0;
inline constexpr unsigned CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterMapped = 2;
inline constexpr unsigned kHostRegisterReadOnly = 8;

inline constexpr int CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1;

// Flags of streams, events and captures.
inline constexpr unsigned CU_STREAM_NON_BLOCKING = 1;
inline constexpr unsigned CU_EVENT_DISABLE_TIMING = 2;
inline constexpr unsigned CU_STREAM_WAIT_VALUE_GEQ = 0;
inline constexpr unsigned CU_STREAM_WRITE_VALUE_DEFAULT = 0;
inline constexpr int CU_STREAM_CAPTURE_STATUS_NONE = 0;
inline constexpr int CU_STREAM_CAPTURE_STATUS_ACTIVE = 1;
inline constexpr int CU_STREAM_CAPTURE_MODE_RELAXED = 2;

// X(name, symbol in the library, version in which that symbol's interface appeared, parameters) lists the calls.
// clang-format off
#define ONECOPY_CUDA_CALLS(X)                                                                             \
  X(cuInit, cuInit, 2000, (unsigned))                                                                     \
  X(cuDriverGetVersion, cuDriverGetVersion, 2020, (int*))                                                 \
  X(cuGetErrorName, cuGetErrorName, 6000, (CUresult, const char**))                                       \
  X(cuGetErrorString, cuGetErrorString, 6000, (CUresult, const char**))                                   \
  X(cuDeviceGet, cuDeviceGet, 2000, (CUdevice*, int))                                                     \
  X(cuDeviceGetCount, cuDeviceGetCount, 2000, (int*))                                                     \
  X(cuDeviceGetName, cuDeviceGetName, 2000, (char*, int, CUdevice))                                       \
  X(cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040, (CUuuid*, CUdevice))                                      \
  X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, (std::size_t*, CUdevice))                                \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, (int*, int, CUdevice))                              \
  X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, (int*, CUdevice, CUdevice))                       \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, (CUcontext*, CUdevice))                     \
  X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, (CUdevice, unsigned*, int*))            \
  X(cuCtxRecordEvent, cuCtxRecordEvent, 12050, (CUcontext, CUevent))                                      \
  X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, (CUcontext*))                                                 \
  X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, (CUcontext))                                             \
  X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, (CUcontext*))                                              \
  X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, (CUcontext, unsigned))                            \
  X(cuCtxSynchronize, cuCtxSynchronize, 2000, ())                                                         \
  X(cuMemGetInfo, cuMemGetInfo_v2, 3020, (std::size_t*, std::size_t*))                                    \
  X(cuMemAlloc, cuMemAlloc_v2, 3020, (CUdeviceptr*, std::size_t))                                         \
  X(cuMemFree, cuMemFree_v2, 3020, (CUdeviceptr))                                                         \
  X(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020, (CUdeviceptr*, std::size_t*, CUdeviceptr))       \
  X(cuPointerGetAttributes, cuPointerGetAttributes, 7000, (unsigned, int*, void**, CUdeviceptr))          \
  X(cuMemHostRegister, cuMemHostRegister_v2, 6050, (void*, std::size_t, unsigned))                        \
  X(cuMemHostUnregister, cuMemHostUnregister, 4000, (void*))                                              \
  X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020, (CUdeviceptr*, void*, unsigned))       \
  X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020,                                  \
    (std::size_t*, const CUmemAllocationProp*, int))                                                      \
  X(cuMemCreate, cuMemCreate, 10020,                                                                      \
    (CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*, unsigned long long))         \
  X(cuMemRelease, cuMemRelease, 10020, (CUmemGenericAllocationHandle))                                    \
  X(cuMemAddressReserve, cuMemAddressReserve, 10020,                                                      \
    (CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long))                            \
  X(cuMemAddressFree, cuMemAddressFree, 10020, (CUdeviceptr, std::size_t))                                \
  X(cuMemMap, cuMemMap, 10020,                                                                            \
    (CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long))            \
  X(cuMemUnmap, cuMemUnmap, 10020, (CUdeviceptr, std::size_t))                                            \
  X(cuMemSetAccess, cuMemSetAccess, 10020,                                                                \
    (CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t))                                      \
  X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020,                                    \
    (void*, CUmemGenericAllocationHandle, int, unsigned long long))                                       \
  X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020,                                \
    (CUmemGenericAllocationHandle*, void*, int))                                                          \
  X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000,                                      \
    (CUmemGenericAllocationHandle*, void*))                                                               \
  X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, (CUipcMemHandle*, CUdeviceptr))                           \
  X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, 11000, (CUdeviceptr*, CUipcMemHandle, unsigned))           \
  X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, (CUdeviceptr))                                        \
  X(cuStreamCreate, cuStreamCreate, 2000, (CUstream*, unsigned))                                          \
  X(cuStreamQuery, cuStreamQuery, 2000, (CUstream))                                                       \
  X(cuStreamGetFlags, cuStreamGetFlags, 5050, (CUstream, unsigned*))                                      \
  X(cuStreamSynchronize, cuStreamSynchronize, 2000, (CUstream))                                           \
  X(cuStreamWaitEvent, cuStreamWaitEvent, 3020, (CUstream, CUevent, unsigned))                            \
  X(cuStreamIsCapturing, cuStreamIsCapturing, 10000, (CUstream, int*))                                    \
  X(cuStreamGetId, cuStreamGetId, 12000, (CUstream, unsigned long long*))                                 \
  X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, (int*))                  \
  X(cuStreamWriteValue64, cuStreamWriteValue64_v2, 11070,                                                 \
    (CUstream, CUdeviceptr, std::uint64_t, unsigned))                                                     \
  X(cuStreamWaitValue64, cuStreamWaitValue64_v2, 11070, (CUstream, CUdeviceptr, std::uint64_t, unsigned)) \
  X(cuLaunchHostFunc, cuLaunchHostFunc, 10000, (CUstream, CUhostFn, void*))                               \
  X(cuEventCreate, cuEventCreate, 2000, (CUevent*, unsigned))                                             \
  X(cuEventDestroy, cuEventDestroy_v2, 4000, (CUevent))                                                   \
  X(cuEventRecord, cuEventRecord, 2000, (CUevent, CUstream))                                              \
  X(cuEventQuery, cuEventQuery, 2000, (CUevent))                                                          \
  X(cuEventSynchronize, cuEventSynchronize, 2000, (CUevent))                                              \
  X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020, (CUdeviceptr, const void*, std::size_t, CUstream))     \
  X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020, (void*, CUdeviceptr, std::size_t, CUstream))           \
  X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020, (CUdeviceptr, CUdeviceptr, std::size_t, CUstream))     \
  X(cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000,                                                           \
    (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, std::size_t, CUstream))                              \
  X(cuMemcpyBatchAsync, cuMemcpyBatchAsync_v2, 13000,                                                     \
    (CUdeviceptr*, CUdeviceptr*, std::size_t*, std::size_t, CUmemcpyAttributes*, std::size_t*,            \
     std::size_t, CUstream))
// clang-format on

using GetProcAddress = CUresult(const char*, void**, int, std::uint64_t, int*);

}  // namespace onecopy::cuda
