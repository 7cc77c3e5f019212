// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/ascend/acl_api.h"

// Calls that frameworks and tests use and the library does not. Columns as in ONECOPY_ACL_CALLS.
// clang-format off
#define ONECOPY_ACL_EXTRA_CALLS(X)                                                                        \
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
