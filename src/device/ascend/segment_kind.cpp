// SPDX-License-Identifier: Apache-2.0
#include "backend.h"
#include "devices.h"
#include "physical_chunk.h"

namespace onecopy::ascend {

namespace {

constexpr std::size_t kLeast = std::size_t{2} << 20;

aclError try_physical_memory(const Driver& driver, int ordinal) {
  const UseDevice use(ordinal);
  const aclrtPhysicalMemProp prop = memory_on(ordinal);
  aclrtDrvMemHandle handle = nullptr;
  if (const aclError result = driver.aclrtMallocPhysical(&handle, kLeast, &prop, 0)) return result;
  std::uint64_t number = 0;
  const aclError result =
      driver.aclrtMemExportToShareableHandle(handle, ACL_MEM_HANDLE_TYPE_NONE, 0, &number);
  driver.aclrtFreePhysical(handle);
  return result;
}

}  // namespace

/// Returns the kind. A device that is full or failing is tried again: the coming allocation reports the fault.
SegmentKind AscendBackend::kind_on(int ordinal) const {
  const Driver& driver = Driver::get();
  if (!driver.has_virtual_memory()) return SegmentKind::ascend_key;
  DeviceEntry& entry = Devices::get().at(ordinal);
  if (const SegmentKind known = entry.kind; known != SegmentKind{}) return known;
  const aclError result = try_physical_memory(driver, ordinal);
  if (result == ACL_ERROR_RT_FEATURE_NOT_SUPPORT) entry.kind = SegmentKind::ascend_key;
  if (result == ACL_SUCCESS) entry.kind = SegmentKind::ascend_vmm;
  return result == ACL_ERROR_RT_FEATURE_NOT_SUPPORT ? SegmentKind::ascend_key : SegmentKind::ascend_vmm;
}

}  // namespace onecopy::ascend
