// SPDX-License-Identifier: Apache-2.0
#include "host_pages.h"

#include <fmt/format.h>

#include "devices.h"
#include "onecopy/core/error.h"

namespace onecopy::cuda {

namespace {

/// For all devices at once. Without a flag of their own, the driver refuses pages that are mapped for reading only.
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

void pin_host(int ordinal, void* at, std::size_t bytes, Access access) {
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

/// A failed device has given it up.
void unpin_host(int ordinal, void* at) noexcept {
  try {
    const UseDevice use(ordinal);
    Driver::get().cuMemHostUnregister(at);
  } catch (const Error&) {
    // The device is gone, or this is a forked child, whose parent has the pins.
  }
}

}  // namespace onecopy::cuda
