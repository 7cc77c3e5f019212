// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "simulators/cuda/extra_calls.h"
#include "support/child.h"

namespace onecopy::testing {

using namespace onecopy::cuda;  // the names of cuda.h

/// The functions of the simulator, or of the real driver that ONECOPY_CUDA_DRIVER names, as a program calls them.
class CudaCalls {
 public:
  CudaCalls() : library_(::dlopen(std::getenv("ONECOPY_CUDA_DRIVER"), RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) throw std::runtime_error(::dlerror());
#define BIND(CALL, SYMBOL, SINCE, PARAMETERS) bind(CALL, #SYMBOL);
    ONECOPY_CUDA_CALLS(BIND)
    ONECOPY_CUDA_EXTRA_CALLS(BIND)
#undef BIND
    bind(cuGetProcAddress_v2, "cuGetProcAddress_v2");
    bind(sim_fail, "sim_fail");
    bind(sim_break, "sim_break");
    bind(sim_shut_down, "sim_shut_down");
    bind(sim_reserved, "sim_reserved");
    bind(sim_staged, "sim_staged");
    bind(sim_batches, "sim_batches");
    bind(sim_unordered, "sim_unordered");
    bind(sim_first_unordered, "sim_first_unordered");
  }

  /// Initialises the driver, and makes the device's primary context current.
  explicit CudaCalls(int ordinal) : CudaCalls() { use(ordinal); }

#define MEMBER(CALL, SYMBOL, SINCE, PARAMETERS) CUresult(*CALL) PARAMETERS = nullptr;
  ONECOPY_CUDA_CALLS(MEMBER)
  ONECOPY_CUDA_EXTRA_CALLS(MEMBER)
#undef MEMBER
  GetProcAddress* cuGetProcAddress_v2 = nullptr;
  void (*sim_fail)(const char*, int, int, int) = nullptr;
  void (*sim_break)(int, int) = nullptr;
  void (*sim_shut_down)() = nullptr;
  std::size_t (*sim_reserved)() = nullptr;
  std::size_t (*sim_staged)() = nullptr;
  std::size_t (*sim_batches)() = nullptr;
  std::size_t (*sim_unordered)() = nullptr;
  const char* (*sim_first_unordered)() = nullptr;

  /// Initialises the driver, and makes the primary context of the device current.
  CUcontext use(int ordinal) const {
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, ordinal), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    return context;
  }
  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) const {
    CUstream made = nullptr;
    EXPECT_EQ(cuStreamCreate(&made, flags), CUDA_SUCCESS);
    return made;
  }
  CUdeviceptr memory(std::size_t bytes) const {
    CUdeviceptr at = 0;
    EXPECT_EQ(cuMemAlloc(&at, bytes), CUDA_SUCCESS);
    return at;
  }
  /// Allocates a chunk of exportable memory, mapped and accessible to the device `ordinal`.
  CUdeviceptr mapped(std::size_t bytes, int ordinal, CUmemGenericAllocationHandle* handle = nullptr) const {
    CUmemGenericAllocationHandle made = 0;
    const CUmemAllocationProp prop = exportable(ordinal);
    EXPECT_EQ(cuMemCreate(&made, bytes, &prop, 0), CUDA_SUCCESS);
    CUdeviceptr at = 0;
    EXPECT_EQ(cuMemAddressReserve(&at, bytes, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(at, bytes, 0, made, 0), CUDA_SUCCESS);
    allow(at, bytes, ordinal);
    if (handle) *handle = made;
    return at;
  }
  void allow(CUdeviceptr at, std::size_t bytes, int ordinal,
             int flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) const {
    const CUmemAccessDesc wanted{{CU_MEM_LOCATION_TYPE_DEVICE, ordinal}, flags};
    EXPECT_EQ(cuMemSetAccess(at, bytes, &wanted, 1), CUDA_SUCCESS);
  }
  static CUmemAllocationProp exportable(int ordinal) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
    return prop;
  }
  int read(CUdeviceptr at) const {
    unsigned char value = 0;
    EXPECT_EQ(cuMemcpyDtoH(&value, at, 1), CUDA_SUCCESS);
    return value;
  }
  void write(CUdeviceptr at, unsigned char value) const {
    EXPECT_EQ(cuMemcpyHtoD(at, &value, 1), CUDA_SUCCESS);
  }

 private:
  template <class F>
  void bind(F*& call, const char* name) {
    call = reinterpret_cast<F*>(::dlsym(library_, name));
  }
  void* library_;
};

/// Runs a test in a child process, since the driver is initialised once, and cannot be used by children that are forked
/// later.
inline void in_child(const std::function<void()>& body) {
  Child child(body);
  EXPECT_EQ(child.join(), 0);
}

/// Runs in_child() with environment variables set.
inline void in_child_with(const std::vector<std::pair<const char*, const char*>>& variables,
                          const std::function<void()>& body) {
  in_child([&] {
    for (const auto& [name, value] : variables) ::setenv(name, value, 1);
    body();
  });
}

}  // namespace onecopy::testing
