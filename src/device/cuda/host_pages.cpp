// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "backend.h"
#include "devices.h"
#include "onecopy/core/error.h"

namespace onecopy::cuda {

namespace {

/// Returns flags that serve all devices at once. Without the read-only flag, the driver refuses pages that are mapped
/// read-only.
unsigned flags_for(const Driver& driver, int ordinal, Access access) {
  if (access == Access::read_write) return kHostRegisterPortable;
  int can = 0;
  driver.cuDeviceGetAttribute.must(&can, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
                                   Devices::get().at(ordinal).device);
  if (can == 0)
    throw Error(ErrorCode::unsupported,
                fmt::format("cuda:{} cannot pin memory that is open for reading only (its driver lacks "
                            "READ_ONLY_HOST_REGISTER_SUPPORTED); open it for writing, or copy it unpinned",
                            ordinal),
                0, ErrorDomain::cuda);
  return kHostRegisterPortable | kHostRegisterReadOnly;
}

}  // namespace

void CudaBackend::pin_host(int ordinal, void* at, std::size_t bytes, Access access) {
  const Driver& driver = Driver::get();
  const UseDevice use(ordinal);
  const CUresult result = driver.cuMemHostRegister(at, bytes, flags_for(driver, ordinal, access));
  if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("some of these {} bytes are pinned already, by cudaHostRegister: end that first",
                    bytes),
        result, ErrorDomain::cuda);
  check(result, "cuMemHostRegister");
}

/// Unpins the range. A failed device has already unpinned it.
void CudaBackend::unpin_host(int ordinal, void* at) noexcept {
  try {
    const UseDevice use(ordinal);
    Driver::get().cuMemHostUnregister(at);
  } catch (const Error&) {
    // The device is gone, or this is a forked child, whose parent holds the pins.
  }
}

void CudaBackend::require_in_place(int ordinal, const void* at) {
  if (Devices::get().at(ordinal).has_host_addresses) return;
  const Driver& driver = Driver::get();
  const UseDevice use(ordinal);
  CUdeviceptr seen = 0;
  driver.cuMemHostGetDevicePointer.must(&seen, const_cast<void*>(at), 0);
  if (seen == reinterpret_cast<CUdeviceptr>(at)) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("cuda:{} sees pinned memory of the host at other addresses (its driver lacks "
                          "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM); copy it: to_device()",
                          ordinal),
              0, ErrorDomain::cuda);
}

}  // namespace onecopy::cuda
