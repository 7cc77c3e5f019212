// SPDX-License-Identifier: Apache-2.0
#include "backend.h"
#include "devices.h"
#include "onecopy/core/error.h"

namespace onecopy::ascend {

int AscendBackend::device_in_use() const noexcept {
  try {
    if (!Driver::try_get()) return -1;
    for (int i = 0; i < static_cast<int>(Devices::get().size()); ++i)
      if (Devices::get().at(i).is_open) return i;
  } catch (const std::exception&) {  // no runtime, or no room
  }
  return -1;
}

/// Waits for the devices that onecopy has used: the runtime does not list other contexts.
bool AscendBackend::finish_work() noexcept {
  try {
    const Driver& driver = Driver::get();
    for (int i = 0; i < static_cast<int>(Devices::get().size()); ++i) {
      if (!Devices::get().at(i).is_open) continue;
      const UseDevice use(i);
      driver.aclrtSynchronizeDevice.must();
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace onecopy::ascend
