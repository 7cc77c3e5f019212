// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/ascend/acl_api.h"

// Types and constants that only tests use.
namespace onecopy::ascend {

using aclrtEvent = void*;
using aclrtHostFunc = void (*)(void*);
struct aclrtPtrAttributes {
  aclrtMemLocation location;
  std::uint32_t pageSize;
  std::uint32_t rsv[4];
};
struct aclrtIpcEventHandle {
  char reserved[64];
};
inline constexpr aclError ACL_ERROR_INVALID_FILE = 100003;
inline constexpr aclError ACL_ERROR_RT_CONTEXT_NULL = 107002;
inline constexpr aclError ACL_ERROR_RT_STREAM_CONTEXT = 107003;
inline constexpr aclError ACL_ERROR_RT_STREAM_SYNC_TIMEOUT = 507046;
inline constexpr int ACL_MEM_LOCATION_TYPE_HOST = 0;
inline constexpr int ACL_MEM_LOCATION_TYPE_UNREGISTERED = 2;
inline constexpr int ACL_RT_MEM_ACCESS_FLAGS_NONE = 0;
inline constexpr int ACL_MEMCPY_DEFAULT = 4;
inline constexpr int kLastMemcpyKind = 7;
inline constexpr std::uint64_t ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION = 1;
inline constexpr std::uint64_t ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION = 1;
inline constexpr int ACL_STREAM_STATUS_COMPLETE = 0;
inline constexpr int ACL_STREAM_STATUS_NOT_READY = 1;
// The two queries of an event answer with opposite numbers.
inline constexpr int ACL_EVENT_RECORDED_STATUS_NOT_READY = 0;
inline constexpr int ACL_EVENT_RECORDED_STATUS_COMPLETE = 1;
inline constexpr int ACL_EVENT_STATUS_COMPLETE = 0;
inline constexpr int ACL_EVENT_STATUS_NOT_READY = 1;
inline constexpr std::uint32_t ACL_EVENT_SYNC = 0x1;
inline constexpr std::uint32_t ACL_EVENT_IPC = 0x40;

}  // namespace onecopy::ascend

// Calls that frameworks and tests use and the library does not. Columns as in ONECOPY_ACL_CALLS.
// clang-format off
#define ONECOPY_ACL_EXTRA_CALLS(X)                                                                        \
  X(aclrtGetVersion, (std::int32_t*, std::int32_t*, std::int32_t*))                                       \
  X(aclFinalize, ())                                                                                      \
  X(aclrtGetDevice, (std::int32_t*))                                                                      \
  X(aclrtDeviceDisablePeerAccess, (std::int32_t))                                                         \
  X(aclrtMallocHost, (void**, std::size_t))                                                               \
  X(aclrtFreeHost, (void*))                                                                               \
  X(aclrtMemcpy, (void*, std::size_t, const void*, std::size_t, int))                                     \
  X(aclrtMemset, (void*, std::size_t, std::int32_t, std::size_t))                                         \
  X(aclrtMemsetAsync, (void*, std::size_t, std::int32_t, std::size_t, aclrtStream))                       \
  X(aclrtPointerGetAttributes, (const void*, aclrtPtrAttributes*))                                        \
  X(aclrtMemGetAddressRange, (void*, void**, std::size_t*))                                               \
  X(aclrtMemGetAllocationGranularity, (aclrtPhysicalMemProp*, int, std::size_t*))                         \
  X(aclrtMemGetAccess, (void*, aclrtMemLocation*, std::uint64_t*))                                        \
  X(aclrtMemRetainAllocationHandle, (void*, aclrtDrvMemHandle*))                                          \
  X(aclrtCreateStream, (aclrtStream*))                                                                    \
  X(aclrtDestroyStream, (aclrtStream))                                                                    \
  X(aclrtStreamQuery, (aclrtStream, int*))                                                                \
  X(aclrtSynchronizeStreamWithTimeout, (aclrtStream, std::int32_t))                                       \
  X(aclrtStreamWaitEvent, (aclrtStream, aclrtEvent))                                                      \
  X(aclrtLaunchHostFunc, (aclrtStream, aclrtHostFunc, void*))                                             \
  X(aclrtCreateEventExWithFlag, (aclrtEvent*, std::uint32_t))                                             \
  X(aclrtDestroyEvent, (aclrtEvent))                                                                      \
  X(aclrtRecordEvent, (aclrtEvent, aclrtStream))                                                          \
  X(aclrtResetEvent, (aclrtEvent, aclrtStream))                                                           \
  X(aclrtQueryEventStatus, (aclrtEvent, int*))                                                            \
  X(aclrtQueryEvent, (aclrtEvent, int*))                                                                  \
  X(aclrtSynchronizeEvent, (aclrtEvent))                                                                  \
  X(aclrtEventElapsedTime, (float*, aclrtEvent, aclrtEvent))                                              \
  X(aclrtIpcGetEventHandle, (aclrtEvent, aclrtIpcEventHandle*))                                           \
  X(aclrtIpcOpenEventHandle, (aclrtIpcEventHandle, aclrtEvent*))                                          \
  X(aclmdlRICaptureBegin, (aclrtStream, int))                                                             \
  X(aclmdlRICaptureEnd, (aclrtStream, void**))                                                            \
  X(aclmdlRIExecuteAsync, (void*, aclrtStream))                                                           \
  X(aclmdlRIDestroy, (void*))
// clang-format on
