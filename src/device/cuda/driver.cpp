// SPDX-License-Identifier: Apache-2.0
#include "driver.h"

#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "onecopy/core/error.h"
#include "os/fork_hook.h"
#include "os/shared_library.h"

namespace onecopy::cuda {

namespace {

constexpr int kOldest = 11040;  // UUIDs of devices as they are now; virtual memory is older

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

ErrorCode code_of(CUresult result) noexcept {
  switch (result) {
    case CUDA_ERROR_INVALID_VALUE: return ErrorCode::invalid_argument;
    case CUDA_ERROR_OUT_OF_MEMORY: return ErrorCode::out_of_memory;
    case CUDA_ERROR_MAP_FAILED: return ErrorCode::out_of_mappings;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:  // this process is ending, and the driver has shut down
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: return ErrorCode::unsupported;
    case CUDA_ERROR_INVALID_DEVICE: return ErrorCode::invalid_argument;
    default: return ErrorCode::system;
  }
}

/// Returns the advice of an error message; empty if the driver's own message suffices.
const char* advice(CUresult result) noexcept {
  switch (result) {
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
      return "; another process uses the device exclusively, or its compute mode forbids all use: "
             "`nvidia-smi -q "
             "-d "
             "COMPUTE` shows the mode, and plain nvidia-smi shows who uses it";
    case CUDA_ERROR_NO_DEVICE:
      return "; is CUDA_VISIBLE_DEVICES set to something that is not there, and may this user open "
             "/dev/nvidia*?";
    case CUDA_ERROR_STUB_LIBRARY:
      return "; this is the toolkit's stub, not the driver: remove it from LD_LIBRARY_PATH";
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return "; a service of the machine (fabric manager, MPS) does not run: check with nvidia-smi";
    case CUDA_ERROR_ILLEGAL_ADDRESS:
      return "; an earlier kernel or copy accessed invalid memory, and this process can no longer use the "
             "device: restart it";
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: return "; do this before the capture begins";
    default: return is_final(result) ? "; this process can no longer use the device: restart it" : "";
  }
}

const ForkHook kDriverAtFork{ForkRank::devices, {.in_child = &Driver::note_fork}};

}  // namespace

bool is_final(CUresult result) noexcept {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:  // cudaDeviceReset, after which the words are not registered
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE: return true;
    default: return false;
  }
}

void throw_result(CUresult result, const std::string& what) {
  const Driver* driver = Driver::try_get();
  const std::string words = driver ? driver->describe(result) : fmt::format("error {}", result);
  throw Error(code_of(result), fmt::format("{} failed with {}{}", what, words, advice(result)), result,
              ErrorDomain::cuda);
}

void Vendor::throw_missing(const char* call, int since) {
  throw Error(ErrorCode::unsupported,
              fmt::format("the CUDA driver does not have {}, which came with CUDA {}; update the driver",
                          call, version_text(since)),
              CUDA_ERROR_NOT_FOUND, ErrorDomain::cuda);
}

/// Loads the driver. Tests can name another library by ONECOPY_CUDA_DRIVER.
Driver::Driver() {
  const char* chosen = std::getenv("ONECOPY_CUDA_DRIVER");
  std::vector<std::string> names{"libcuda.so.1"};
  if (chosen && *chosen) names = {chosen};
  std::string why;
  auto library = SharedLibrary::open(names, &why);
  if (!library) {
    problem_ = fmt::format("there is no CUDA driver on this machine: tried {}", why);
    return;
  }
  bind_all(library->symbol("cuGetProcAddress_v2"));
#define BIND(CALL, SYMBOL, SINCE, PARAMETERS) \
  if (version_ == 0) CALL.bind(library->symbol(#SYMBOL));
  ONECOPY_CUDA_CALLS(BIND)  // before CUDA 12
  ONECOPY_CUDA_GRAPH_CALLS(BIND)
#undef BIND
  if (version_ == 0 && cuDriverGetVersion) cuDriverGetVersion(&version_);
  if (version_ < kOldest) {
    problem_ = fmt::format("the CUDA driver is of version {}; onecopy needs {} or newer",
                           version_text(version_), version_text(kOldest));
    return;
  }
  result_ = cuInit(0);
  if (result_ != CUDA_SUCCESS)
    problem_ = fmt::format(
        "cuInit failed with {}{}", describe(result_),
        result_ == CUDA_ERROR_OPERATING_SYSTEM ? "; may this user open /dev/nvidia*?" : advice(result_));
}

/// Binds each call in the form that this table was written for: a later form may take other parameters.
void Driver::bind_all(void* address) {
  if (!address) return;
  auto* find = reinterpret_cast<GetProcAddress*>(address);
  const auto bind = [find](auto& call) {
    void* found = nullptr;
    int status = 0;
    if (find(call.name(), &found, call.since(), 0, &status) == CUDA_SUCCESS) call.bind(found);
  };
#define BIND(CALL, SYMBOL, SINCE, PARAMETERS) bind(CALL);
  ONECOPY_CUDA_CALLS(BIND)
  ONECOPY_CUDA_GRAPH_CALLS(BIND)
#undef BIND
  if (cuDriverGetVersion) cuDriverGetVersion(&version_);
}

std::string Driver::describe(CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName) cuGetErrorName(result, &name);
  if (cuGetErrorString) cuGetErrorString(result, &text);
  return fmt::format("{} ({}): {}", name ? name : "CUDA error", result, text ? text : "no description");
}

}  // namespace onecopy::cuda
