// SPDX-License-Identifier: Apache-2.0
#include "device/shared_events.h"

#include "device/calls_by_name.h"
#include "device/cuda/driver_api.h"

namespace onecopy {
namespace {

using cuda::CUcontext, cuda::CUdeviceptr, cuda::CUevent, cuda::CUipcEventHandle, cuda::CUstream;

constexpr unsigned kCudaEventFlags = 2 | 4;  // without timing, between processes

CallsByName cuda_calls(int ordinal) {
  CallsByName cuda("ONECOPY_CUDA_DRIVER", {"libcuda.so.1", "libcuda.so"});
  CUcontext context = nullptr;
  cuda.must("cuInit", 0U);
  cuda.must("cuDevicePrimaryCtxRetain", &context, ordinal);
  cuda.must("cuCtxSetCurrent", context);
  return cuda;
}

}  // namespace

void* allocate_by_cuda(int ordinal, std::size_t bytes) {
  CUdeviceptr at = 0;
  cuda_calls(ordinal).must("cuMemAlloc_v2", &at, bytes);
  return reinterpret_cast<void*>(at);
}

SharedEvent record_cuda_event() {
  const CallsByName cuda = cuda_calls(0);
  CUevent event = nullptr;
  CUipcEventHandle handle{};
  cuda.must("cuEventCreate", &event, kCudaEventFlags);
  cuda.must("cuEventRecord", event, CUstream{});
  cuda.must("cuIpcGetEventHandle", &handle, event);
  return bytes_of_event(handle);
}

void wait_for_cuda_event(const SharedEvent& handle) {
  const CallsByName cuda = cuda_calls(0);
  CUevent event = nullptr;
  cuda.must("cuIpcOpenEventHandle", &event, event_in<CUipcEventHandle>(handle));
  cuda.must("cuStreamWaitEvent", CUstream{}, event, 0U);
  cuda.must("cuStreamSynchronize", CUstream{});
}

}  // namespace onecopy
