// SPDX-License-Identifier: Apache-2.0
// Our table of the driver's interface against the real header, where there is one.
#if __has_include(<cudaTypedefs.h>)

#include <cuda.h>
#include <cudaTypedefs.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>

// The table under another name: cuda.h has the types and constants of the same names.
#define onecopy table
#include "simulators/cuda/extra_calls.h"
#undef onecopy

#include <gtest/gtest.h>

namespace table::cuda {
#define DECLARE(CALL, SYMBOL, SINCE, PARAMETERS) using SYMBOL##_type = CUresult PARAMETERS;
ONECOPY_CUDA_CALLS(DECLARE)
ONECOPY_CUDA_EXTRA_CALLS(DECLARE)
#undef DECLARE
}  // namespace table::cuda

namespace {

/// How a type is passed: its size, and whether as a number, an address or a structure.
struct Shape {
  std::size_t size;
  int how;
  bool operator==(const Shape&) const = default;
};

template <class T>
constexpr Shape shape_of() {
  constexpr int how = std::is_pointer_v<T> ? 1 : std::is_class_v<T> ? 2 : 0;
  return {sizeof(T), how};
}

template <class F>
struct Signature;
template <class R, class... A>
struct Signature<R(A...)> {
  static constexpr std::array<Shape, 1 + sizeof...(A)> shapes{shape_of<R>(), shape_of<A>()...};
};

#define COMPARE(CALL, SYMBOL, SINCE, PARAMETERS)                                                        \
  static_assert(Signature<table::cuda::SYMBOL##_type>::shapes == Signature<decltype(::SYMBOL)>::shapes, \
                #SYMBOL);
ONECOPY_CUDA_CALLS(COMPARE)
ONECOPY_CUDA_EXTRA_CALLS(COMPARE)
#undef COMPARE

// The driver finds a call by its name and a version, and finds none for a version before the call's first.
#define COMPARE_SINCE(CALL, SYMBOL, SINCE, PARAMETERS)                               \
  static_assert(Signature<table::cuda::SYMBOL##_type>::shapes ==                     \
                    Signature<std::remove_pointer_t<PFN_##CALL##_v##SINCE>>::shapes, \
                #CALL);
ONECOPY_CUDA_CALLS(COMPARE_SINCE)
ONECOPY_CUDA_EXTRA_CALLS(COMPARE_SINCE)
#undef COMPARE_SINCE

#define SAME(NAME) \
  static_assert(static_cast<long long>(table::cuda::NAME) == static_cast<long long>(::NAME))
SAME(CUDA_ERROR_INVALID_VALUE);
SAME(CUDA_ERROR_OUT_OF_MEMORY);
SAME(CUDA_ERROR_NOT_INITIALIZED);
SAME(CUDA_ERROR_DEINITIALIZED);
SAME(CUDA_ERROR_STUB_LIBRARY);
SAME(CUDA_ERROR_NO_DEVICE);
SAME(CUDA_ERROR_INVALID_DEVICE);
SAME(CUDA_ERROR_INVALID_CONTEXT);
SAME(CUDA_ERROR_MAP_FAILED);
SAME(CUDA_ERROR_ALREADY_MAPPED);
SAME(CUDA_ERROR_NOT_MAPPED);
SAME(CUDA_ERROR_ECC_UNCORRECTABLE);
SAME(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME(CUDA_ERROR_NVLINK_UNCORRECTABLE);
SAME(CUDA_ERROR_INVALID_HANDLE);
SAME(CUDA_ERROR_NOT_FOUND);
SAME(CUDA_ERROR_NOT_READY);
SAME(CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(CUDA_ERROR_LAUNCH_TIMEOUT);
SAME(CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME(CUDA_ERROR_ASSERT);
SAME(CUDA_ERROR_HARDWARE_STACK_ERROR);
SAME(CUDA_ERROR_ILLEGAL_INSTRUCTION);
SAME(CUDA_ERROR_MISALIGNED_ADDRESS);
SAME(CUDA_ERROR_INVALID_ADDRESS_SPACE);
SAME(CUDA_ERROR_INVALID_PC);
SAME(CUDA_ERROR_LAUNCH_FAILED);
SAME(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
SAME(CUDA_ERROR_NOT_PERMITTED);
SAME(CUDA_ERROR_NOT_SUPPORTED);
SAME(CUDA_ERROR_SYSTEM_NOT_READY);
SAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
SAME(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME(CUDA_ERROR_CAPTURED_EVENT);
SAME(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
#if CUDA_VERSION >= 12000
SAME(CUDA_ERROR_MPS_CLIENT_TERMINATED);
SAME(CUDA_ERROR_EXTERNAL_DEVICE);
#endif
#if CUDA_VERSION >= 13000
SAME(CUDA_ERROR_CONTAINED);
SAME(CUDA_ERROR_TENSOR_MEMORY_LEAK);
#endif
SAME(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
SAME(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
SAME(CU_POINTER_ATTRIBUTE_CONTEXT);
SAME(CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
SAME(CU_POINTER_ATTRIBUTE_BUFFER_ID);
SAME(CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME(CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME(CU_POINTER_ATTRIBUTE_MAPPED);
SAME(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
SAME(CU_MEMORYTYPE_HOST);
SAME(CU_MEMORYTYPE_DEVICE);
SAME(CU_MEM_LOCATION_TYPE_DEVICE);
SAME(CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(CU_STREAM_NON_BLOCKING);
SAME(CU_EVENT_DISABLE_TIMING);
SAME(CU_EVENT_INTERPROCESS);
SAME(CU_STREAM_WAIT_VALUE_GEQ);
SAME(CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME(CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME(CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
static_assert(table::cuda::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS == ::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

static_assert(sizeof(table::cuda::CUmemAllocationProp) == sizeof(::CUmemAllocationProp));
static_assert(offsetof(table::cuda::CUmemAllocationProp, location) ==
              offsetof(::CUmemAllocationProp, location));
static_assert(offsetof(table::cuda::CUmemAllocationProp, allocFlags) ==
              offsetof(::CUmemAllocationProp, allocFlags));
static_assert(sizeof(table::cuda::CUmemAccessDesc) == sizeof(::CUmemAccessDesc));
static_assert(offsetof(table::cuda::CUmemAccessDesc, flags) == offsetof(::CUmemAccessDesc, flags));

TEST(CudaAbi, IsTheOneOfTheRealHeader) { SUCCEED() << "compared when this file was compiled"; }

}  // namespace

#endif
