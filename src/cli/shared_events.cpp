// SPDX-License-Identifier: Apache-2.0
#include "shared_events.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "onecopy/os/shared_library.h"

namespace onecopy::cli {
namespace {

constexpr unsigned kCudaEventFlags = 2 | 4;  // without timing, between processes
constexpr std::uint32_t kAscendEventFlags = 0x40;
constexpr int kAscendRepeated = 100002;  // initialised already

/// Both vendors' handles of events. Drivers take them by value.
struct EventHandle {
  char bytes[64];
};

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
  void* context = nullptr;
  cuda.must("cuInit", 0U);
  cuda.must("cuDevicePrimaryCtxRetain", &context, ordinal);
  cuda.must("cuCtxSetCurrent", context);
}

void use_ascend_device(const Calls& npu, int ordinal) {
  if (const int error = npu.result("aclInit", static_cast<const char*>(nullptr));
      error != 0 && error != kAscendRepeated)
    throw Error(ErrorCode::unsupported, fmt::format("aclInit failed with error {}", error));
  npu.must("aclrtSetDevice", std::int32_t{ordinal});
}

void record_by_cuda(EventHandle* handle) {
  const Calls cuda(DeviceType::cuda);
  use_cuda_device(cuda, 0);
  void* event = nullptr;
  cuda.must("cuEventCreate", &event, kCudaEventFlags);
  cuda.must("cuEventRecord", event, static_cast<void*>(nullptr));
  cuda.must("cuIpcGetEventHandle", handle, event);
}

void record_by_ascend(EventHandle* handle) {
  const Calls npu(DeviceType::npu);
  use_ascend_device(npu, 0);
  void* event = nullptr;
  npu.must("aclrtCreateEventExWithFlag", &event, kAscendEventFlags);
  npu.must("aclrtRecordEvent", event, static_cast<void*>(nullptr));
  npu.must("aclrtIpcGetEventHandle", event, handle);
}

void wait_by_cuda(const EventHandle& handle) {
  const Calls cuda(DeviceType::cuda);
  use_cuda_device(cuda, 0);
  void* event = nullptr;
  void* const stream = nullptr;
  cuda.must("cuIpcOpenEventHandle", &event, handle);
  cuda.must("cuStreamWaitEvent", stream, event, 0U);
  cuda.must("cuStreamSynchronize", stream);
}

void wait_by_ascend(const EventHandle& handle) {
  const Calls npu(DeviceType::npu);
  use_ascend_device(npu, 0);
  void* event = nullptr;
  void* const stream = nullptr;
  npu.must("aclrtIpcOpenEventHandle", handle, &event);
  npu.must("aclrtStreamWaitEvent", stream, event);
  npu.must("aclrtSynchronizeStream", stream);
}

}  // namespace

void* allocate_by_cuda(int ordinal, std::size_t bytes) {
  const Calls cuda(DeviceType::cuda);
  use_cuda_device(cuda, ordinal);
  void* at = nullptr;  // CUdeviceptr is a number of the same size
  cuda.must("cuMemAlloc_v2", &at, bytes);
  return at;
}

std::vector<std::uint8_t> record_shared_event(DeviceType type) {
  EventHandle handle{};
  type == DeviceType::cuda ? record_by_cuda(&handle) : record_by_ascend(&handle);
  return {std::begin(handle.bytes), std::end(handle.bytes)};
}

void wait_for_shared_event(DeviceType type, const std::vector<std::uint8_t>& bytes) {
  EventHandle handle{};
  if (bytes.size() != sizeof handle.bytes)
    throw Error(ErrorCode::invalid_argument, "the handle of an event has the wrong size");
  std::copy(bytes.begin(), bytes.end(), handle.bytes);
  type == DeviceType::cuda ? wait_by_cuda(handle) : wait_by_ascend(handle);
}

}  // namespace onecopy::cli
