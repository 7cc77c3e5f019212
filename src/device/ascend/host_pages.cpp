// SPDX-License-Identifier: Apache-2.0
#include "host_pages.h"

#include "devices.h"

namespace onecopy::ascend {

void pin_host(int ordinal, void* at, std::size_t bytes, Access access) {
  const Driver& driver = Driver::get();
  const UseDevice use(ordinal);
  void* seen = nullptr;  // where kernels would find it; copies name the host's address
  driver.aclrtHostRegister.must(
      at, bytes, access == Access::read_only ? ACL_HOST_REGISTER_READONLY : ACL_HOST_REGISTER_MAPPED,
      &seen);
}

void unpin_host(int ordinal, void* at) noexcept {
  try {
    const UseDevice use(ordinal);
    Driver::get().aclrtHostUnregister(at);
  } catch (const Error&) {
    // The device is gone, or this is a forked child, whose parent has the pins.
  }
}

}  // namespace onecopy::ascend
