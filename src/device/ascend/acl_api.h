// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// The part of the ACL runtime's C interface that is used here, with the names of acl/acl_rt.h, so that building needs
/// no CANN. One table serves CANN 8.3 to 9.2, because these releases added calls and changed none. Nothing is linked:
/// driver.h finds the calls at run time, and any of them may be missing.
namespace onecopy::ascend {

using aclError = int;
using aclrtStream = void*;
using aclrtContext = void*;
using aclrtDrvMemHandle = void*;
using aclmdlRI = void*;

struct aclrtUuid {
  char bytes[16];
};
struct aclrtMemLocation {
  std::uint32_t id;
  int type;
};
struct aclrtPhysicalMemProp {
  int handleType;
  int allocationType;
  int memAttr;
  aclrtMemLocation location;
  std::uint64_t reserve;
};
struct aclrtMemAccessDesc {  // unlike CUDA's struct, the flags come first
  int flags;
  aclrtMemLocation location;
  std::uint8_t rsv[12];
};
struct aclCANNPackageVersion {
  char version[128];
  char majorVersion[64];
  char minorVersion[64];
  char releaseVersion[64];
  char patchVersion[64];
  char reserved[128];
};

// Results.
inline constexpr aclError ACL_SUCCESS = 0;
inline constexpr aclError ACL_ERROR_INVALID_PARAM = 100000;
inline constexpr aclError ACL_ERROR_UNINITIALIZE = 100001;
inline constexpr aclError ACL_ERROR_REPEAT_INITIALIZE = 100002;
inline constexpr aclError ACL_ERROR_RT_PARAM_INVALID = 107000;
inline constexpr aclError ACL_ERROR_RT_INVALID_DEVICEID = 107001;
inline constexpr aclError ACL_ERROR_RT_ADDR_UNALIGNED = 107008;
inline constexpr aclError ACL_ERROR_RT_INVALID_HANDLE = 107017;
inline constexpr aclError ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT = 107030;
inline constexpr aclError ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000;
inline constexpr aclError ACL_ERROR_RT_MEMORY_ALLOCATION = 207001;
inline constexpr aclError ACL_ERROR_RT_NO_DEVICE = 207004;
inline constexpr aclError ACL_ERROR_RT_NO_PERMISSION = 207006;
inline constexpr aclError ACL_ERROR_RT_DEVICE_OOM = 207018;
inline constexpr aclError ACL_ERROR_RT_LOST_HEARTBEAT = 507010;
inline constexpr aclError ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR = 507054;
inline constexpr aclError ACL_ERROR_RT_DRV_INTERNAL_ERROR = 507899;  ///< the result of a misuse of IPC
/// The connection between host and device is closed.
inline constexpr aclError ACL_ERROR_RT_SOCKET_CLOSE = 507901;

// Memory.
inline constexpr int ACL_MEM_MALLOC_HUGE_FIRST = 0;
inline constexpr int ACL_MEM_MALLOC_HUGE_ONLY = 1;
inline constexpr int ACL_HBM_MEM = 1;
inline constexpr int ACL_HBM_MEM_HUGE = 4;
inline constexpr int ACL_MEM_LOCATION_TYPE_DEVICE = 1;
inline constexpr int ACL_MEM_HANDLE_TYPE_NONE = 0;
inline constexpr int ACL_MEM_ALLOCATION_TYPE_PINNED = 0;
inline constexpr int ACL_RT_MEM_ACCESS_FLAGS_READ = 1;
inline constexpr int ACL_RT_MEM_ACCESS_FLAGS_READWRITE = 3;
inline constexpr int ACL_MEMCPY_HOST_TO_DEVICE = 1;
inline constexpr int ACL_MEMCPY_DEVICE_TO_HOST = 2;
inline constexpr int ACL_MEMCPY_DEVICE_TO_DEVICE = 3;
inline constexpr int ACL_HOST_REGISTER_MAPPED = 0;
inline constexpr int ACL_HOST_REGISTER_READONLY = 8;
inline constexpr std::size_t kKeyBytes = 65;  ///< the length of an IPC key, with its final zero
inline constexpr std::uint64_t ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS = 1;

// The state of a stream.
inline constexpr int ACL_MODEL_RI_CAPTURE_STATUS_NONE = 0;

// The packages that have versions.
inline constexpr int ACL_PKG_NAME_CANN = 0;
inline constexpr int ACL_PKG_NAME_DRIVER = 7;

// X(name, parameters) lists the calls that the library makes. All return aclError; aclrtGetSocName and
// aclGetRecentErrMsg, which return text, are bound by hand.
// clang-format off
#define ONECOPY_ACL_CALLS(X)                                                                              \
  X(aclInit, (const char*))                                                                               \
  X(aclsysGetCANNVersion, (int, aclCANNPackageVersion*))                                                  \
  X(aclrtSetDevice, (std::int32_t))                                                                       \
  X(aclrtGetDeviceCount, (std::uint32_t*))                                                                \
  X(aclrtGetCurrentContext, (aclrtContext*))                                                              \
  X(aclrtSetCurrentContext, (aclrtContext))                                                               \
  X(aclrtDeviceGetUuid, (std::int32_t, aclrtUuid*))                                                       \
  X(aclrtGetPhyDevIdByLogicDevId, (std::int32_t, std::int32_t*))                                          \
  X(aclrtDeviceGetBareTgid, (std::int32_t*))                                                              \
  X(aclrtDeviceCanAccessPeer, (std::int32_t*, std::int32_t, std::int32_t))                                \
  X(aclrtDeviceEnablePeerAccess, (std::int32_t, std::uint32_t))                                           \
  X(aclrtDevicePeerAccessStatus, (std::int32_t, std::int32_t, std::int32_t*))                             \
  X(aclrtGetMemInfo, (int, std::size_t*, std::size_t*))                                                   \
  X(aclrtMalloc, (void**, std::size_t, int))                                                              \
  X(aclrtFree, (void*))                                                                                   \
  X(aclrtHostRegister, (void*, std::uint64_t, int, void**))                                               \
  X(aclrtHostUnregister, (void*))                                                                         \
  X(aclrtMemcpyAsync, (void*, std::size_t, const void*, std::size_t, int, aclrtStream))                   \
  X(aclrtSynchronizeDevice, ())                                                                           \
  X(aclrtSynchronizeStream, (aclrtStream))                                                                \
  X(aclrtMallocPhysical,                                                                                  \
    (aclrtDrvMemHandle*, std::size_t, const aclrtPhysicalMemProp*, std::uint64_t))                        \
  X(aclrtFreePhysical, (aclrtDrvMemHandle))                                                               \
  X(aclrtReserveMemAddress, (void**, std::size_t, std::size_t, void*, std::uint64_t))                     \
  X(aclrtReleaseMemAddress, (void*))                                                                      \
  X(aclrtMapMem, (void*, std::size_t, std::size_t, aclrtDrvMemHandle, std::uint64_t))                     \
  X(aclrtUnmapMem, (void*))                                                                               \
  X(aclrtMemSetAccess, (void*, std::size_t, aclrtMemAccessDesc*, std::size_t))                            \
  X(aclrtMemExportToShareableHandle, (aclrtDrvMemHandle, int, std::uint64_t, std::uint64_t*))             \
  X(aclrtMemImportFromShareableHandle, (std::uint64_t, std::int32_t, aclrtDrvMemHandle*))                 \
  X(aclrtMemSetPidToShareableHandle, (std::uint64_t, std::int32_t*, std::size_t))                         \
  X(aclrtIpcMemGetExportKey, (void*, std::size_t, char*, std::size_t, std::uint64_t))                     \
  X(aclrtIpcMemSetImportPid, (const char*, std::int32_t*, std::size_t))                                   \
  X(aclrtIpcMemImportByKey, (void**, const char*, std::uint64_t))                                         \
  X(aclrtIpcMemClose, (const char*))                                                                      \
  X(aclmdlRICaptureGetInfo, (aclrtStream, int*, aclmdlRI*))
// clang-format on

using GetSocName = const char*();
using GetRecentErrMsg = const char*();

}  // namespace onecopy::ascend
