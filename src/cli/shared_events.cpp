// SPDX-License-Identifier: Apache-2.0
#include "shared_events.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "device/ascend/acl_api.h"
#include "device/cuda/driver_api.h"
#include "onecopy/core/error.h"
#include "onecopy/os/shared_library.h"

namespace onecopy::cli {
namespace {

using ascend::aclrtEvent, ascend::aclrtIpcEventHandle, ascend::aclrtStream;
using cuda::CUcontext, cuda::CUdeviceptr, cuda::CUevent, cuda::CUipcEventHandle, cuda::CUstream;

constexpr unsigned kCudaEventFlags = 2 | 4;  // without timing, between processes
constexpr std::uint32_t kAscendEventFlags = 0x40;
constexpr int kAscendRepeated = 100002;  // initialised already

/// The library that the backend has loaded, too.
SharedLibrary library_of(DeviceType type) {
  const bool cuda = type == DeviceType::cuda;
  const char* chosen = std::getenv(cuda ? "ONECOPY_CUDA_DRIVER" : "ONECOPY_ASCEND_RUNTIME");
  std::vector<std::string> names = cuda ? std::vector<std::string>{"libcuda.so.1", "libcuda.so"}
                                        : std::vector<std::string>{"libascendcl.so", "libacl_rt.so"};
  if (chosen && *chosen) names = {chosen};
  std::string why;
  if (auto library = SharedLibrary::open(names, &why)) return *std::move(library);
  throw Error(ErrorCode::unsupported, "tried " + why);
}

/// Calls of a driver by name, each of which returns 0 when it went well.
class Calls {
 public:
  explicit Calls(DeviceType type) : library_(library_of(type)) {}

  template <class... Parameters>
  int result(const char* name, Parameters... parameters) const {
    auto* call = reinterpret_cast<int (*)(Parameters...)>(library_.symbol(name));
    if (call) return call(parameters...);
    throw Error(ErrorCode::unsupported, fmt::format("{} has no {}", library_.name(), name));
  }
  template <class... Parameters>
  void must(const char* name, Parameters... parameters) const {
    if (const int error = result(name, parameters...); error != 0)
      throw Error(ErrorCode::unsupported, fmt::format("{} failed with error {}", name, error));
  }

 private:
  SharedLibrary library_;
};

void use_cuda_device(const Calls& cuda, int ordinal) {
  CUcontext context = nullptr;
  cuda.must("cuInit", 0U);
  cuda.must("cuDevicePrimaryCtxRetain", &context, ordinal);
  cuda.must("cuCtxSetCurrent", context);
}

void use_ascend_device(const Calls& npu, std::int32_t ordinal) {
  if (const int error = npu.result("aclInit", static_cast<const char*>(nullptr));
      error != 0 && error != kAscendRepeated)
    throw Error(ErrorCode::unsupported, fmt::format("aclInit failed with error {}", error));
  npu.must("aclrtSetDevice", ordinal);
}

CUipcEventHandle record_by_cuda() {
  const Calls cuda(DeviceType::cuda);
  use_cuda_device(cuda, 0);
  CUevent event = nullptr;
  CUipcEventHandle handle{};
  cuda.must("cuEventCreate", &event, kCudaEventFlags);
  cuda.must("cuEventRecord", event, CUstream{});
  cuda.must("cuIpcGetEventHandle", &handle, event);
  return handle;
}

aclrtIpcEventHandle record_by_ascend() {
  const Calls npu(DeviceType::npu);
  use_ascend_device(npu, 0);
  aclrtEvent event = nullptr;
  aclrtIpcEventHandle handle{};
  npu.must("aclrtCreateEventExWithFlag", &event, kAscendEventFlags);
  npu.must("aclrtRecordEvent", event, aclrtStream{});
  npu.must("aclrtIpcGetEventHandle", event, &handle);
  return handle;
}

void wait_by_cuda(const CUipcEventHandle& handle) {
  const Calls cuda(DeviceType::cuda);
  use_cuda_device(cuda, 0);
  CUevent event = nullptr;
  cuda.must("cuIpcOpenEventHandle", &event, handle);
  cuda.must("cuStreamWaitEvent", CUstream{}, event, 0U);
  cuda.must("cuStreamSynchronize", CUstream{});
}

void wait_by_ascend(const aclrtIpcEventHandle& handle) {
  const Calls npu(DeviceType::npu);
  use_ascend_device(npu, 0);
  aclrtEvent event = nullptr;
  npu.must("aclrtIpcOpenEventHandle", handle, &event);
  npu.must("aclrtStreamWaitEvent", aclrtStream{}, event);
  npu.must("aclrtSynchronizeStream", aclrtStream{});
}

template <class Handle>
std::vector<std::uint8_t> bytes_of(const Handle& handle) {
  std::vector<std::uint8_t> bytes(sizeof handle);
  std::memcpy(bytes.data(), &handle, sizeof handle);
  return bytes;
}

template <class Handle>
Handle handle_in(const std::vector<std::uint8_t>& bytes) {
  Handle handle;
  if (bytes.size() != sizeof handle)
    throw Error(ErrorCode::invalid_argument, "the handle of an event has the wrong size");
  std::memcpy(&handle, bytes.data(), sizeof handle);
  return handle;
}

}  // namespace

void* allocate_by_cuda(int ordinal, std::size_t bytes) {
  const Calls cuda(DeviceType::cuda);
  use_cuda_device(cuda, ordinal);
  CUdeviceptr at = 0;
  cuda.must("cuMemAlloc_v2", &at, bytes);
  return reinterpret_cast<void*>(at);
}

std::vector<std::uint8_t> record_shared_event(DeviceType type) {
  return type == DeviceType::cuda ? bytes_of(record_by_cuda()) : bytes_of(record_by_ascend());
}

void wait_for_shared_event(DeviceType type, const std::vector<std::uint8_t>& bytes) {
  if (type == DeviceType::cuda) wait_by_cuda(handle_in<CUipcEventHandle>(bytes));
  else wait_by_ascend(handle_in<aclrtIpcEventHandle>(bytes));
}

}  // namespace onecopy::cli
