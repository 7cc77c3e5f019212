// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: memory, addresses, the mapping of one to the other, and 64-bit numbers that name
// memory in other processes.
#include <unistd.h>

#include <cstdlib>

#include "state.h"

using namespace sim;

namespace {

bool is_unit(std::size_t size) { return size != 0 && size % kHugePage == 0; }

bool is_valid(const aclrtPhysicalMemProp* prop) {
  return prop && prop->allocationType == ACL_MEM_ALLOCATION_TYPE_PINNED &&
         prop->handleType == ACL_MEM_HANDLE_TYPE_NONE &&
         prop->location.type == ACL_MEM_LOCATION_TYPE_DEVICE && prop->memAttr >= 0 && prop->memAttr <= 17;
}

void* add_handle(std::shared_ptr<Memory> memory, int device) {
  void* handle = reinterpret_cast<void*>(++state().last_handle);
  state().handles[handle] = {std::move(memory), device, false};
  return handle;
}

/// The mapping that is exactly this one.
Range* mapping_of(void* pointer, std::size_t size) {
  const auto at = state().ranges.find(address(pointer));
  if (at == state().ranges.end() || at->second.kind != RangeKind::vmm || at->second.size != size)
    return nullptr;
  return &at->second;
}

}  // namespace

SIM_CALL aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp* prop, int, std::size_t* granularity) {
  SIM_ENTER(aclrtMemGetAllocationGranularity);
  if (!granularity || !is_valid(prop)) return ACL_ERROR_INVALID_PARAM;
  *granularity = kHugePage;
  return ACL_SUCCESS;
}

SIM_CALL aclrtMallocPhysical(aclrtDrvMemHandle* handle, std::size_t size, const aclrtPhysicalMemProp* prop,
                             std::uint64_t flags) {
  SIM_ENTER(aclrtMallocPhysical);
  if (!handle || !is_valid(prop) || !is_unit(size) || flags != 0) return ACL_ERROR_INVALID_PARAM;
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  const int device = physical(static_cast<int>(prop->location.id));
  if (device < 0) return ACL_ERROR_RT_INVALID_DEVICEID;
  if (settings().is_virtual(device)) return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
  const std::lock_guard lock(state().mutex);
  auto memory = allocate(device, size);
  if (!memory) return ACL_ERROR_RT_MEMORY_ALLOCATION;
  *handle = add_handle(std::move(memory), device);
  return ACL_SUCCESS;
}

/// Mappings keep the memory, as other processes do.
SIM_CALL aclrtFreePhysical(aclrtDrvMemHandle handle) {
  SIM_ENTER(aclrtFreePhysical);
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.handles.find(handle);
  if (at == all.handles.end()) return ACL_ERROR_RT_INVALID_HANDLE;
  if (at->second.exported) all.exported.erase(at->second.memory->number());
  all.handles.erase(at);
  return ACL_SUCCESS;
}

SIM_CALL aclrtReserveMemAddress(void** pointer, std::size_t size, std::size_t alignment, void* expected,
                                std::uint64_t flags) {
  SIM_ENTER(aclrtReserveMemAddress);
  if (!pointer || !is_unit(size) || alignment != 0 || expected || flags > 1) return ACL_ERROR_INVALID_PARAM;
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  const std::lock_guard lock(state().mutex);
  const std::uintptr_t base = reserve_addresses(size);
  if (base == 0) return ACL_ERROR_RT_MEMORY_ALLOCATION;
  state().reservations[base].size = size;
  *pointer = reinterpret_cast<void*>(base);
  return ACL_SUCCESS;
}

SIM_CALL aclrtReleaseMemAddress(void* pointer) {
  SIM_ENTER(aclrtReleaseMemAddress);
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.reservations.find(address(pointer));
  if (at == all.reservations.end()) return ACL_ERROR_RT_PARAM_INVALID;
  const auto mapped = all.ranges.lower_bound(at->first);
  if (mapped != all.ranges.end() && mapped->first < at->first + at->second.size)
    return ACL_ERROR_RT_PARAM_INVALID;
  free_addresses(at->first, at->second.size);
  all.reservations.erase(at);
  return ACL_SUCCESS;
}

/// Whole allocations only, and none of two cards, or own and imported, in one reservation.
SIM_CALL aclrtMapMem(void* pointer, std::size_t size, std::size_t offset, aclrtDrvMemHandle handle,
                     std::uint64_t flags) {
  SIM_ENTER(aclrtMapMem);
  if (!pointer || offset != 0 || flags != 0) return ACL_ERROR_INVALID_PARAM;
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.handles.find(handle);
  if (at == all.handles.end()) return ACL_ERROR_RT_INVALID_HANDLE;
  const Memory& memory = *at->second.memory;
  const std::uintptr_t base = address(pointer);
  auto reserved = all.reservations.upper_bound(base);
  if (size != memory.size || base % kHugePage != 0 || reserved == all.reservations.begin())
    return ACL_ERROR_RT_PARAM_INVALID;
  auto& [begin, place] = *--reserved;
  const auto next = all.ranges.lower_bound(base);
  if (base - begin > place.size || size > place.size - (base - begin) || all.find(base) ||
      (next != all.ranges.end() && next->first < base + size))
    return ACL_ERROR_RT_PARAM_INVALID;
  if (place.device >= 0 && (place.device != memory.device || place.imported != memory.imported))
    return ACL_ERROR_RT_PARAM_INVALID;
  place.device = memory.device;
  place.imported = memory.imported;
  Range& range = add_range(base, size, RangeKind::vmm, at->second.memory, at->second.device);
  range.access[at->second.device] = ACL_RT_MEM_ACCESS_FLAGS_READWRITE;
  range.handle = handle;
  return ACL_SUCCESS;
}

SIM_CALL aclrtUnmapMem(void* pointer) {
  SIM_ENTER(aclrtUnmapMem);
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.ranges.find(address(pointer));
  if (at == all.ranges.end() || at->second.kind != RangeKind::vmm) return ACL_ERROR_RT_PARAM_INVALID;
  all.ranges.erase(at);
  return ACL_SUCCESS;
}

SIM_CALL aclrtMemSetAccess(void* pointer, std::size_t size, aclrtMemAccessDesc* wanted, std::size_t count) {
  SIM_ENTER(aclrtMemSetAccess);
  const std::lock_guard lock(state().mutex);
  Range* range = mapping_of(pointer, size);
  if (!wanted || count == 0 || !range) return ACL_ERROR_RT_PARAM_INVALID;
  for (std::size_t i = 0; i < count; ++i) {
    const int device = physical(static_cast<int>(wanted[i].location.id));
    const int flags = wanted[i].flags;
    if (wanted[i].location.type != ACL_MEM_LOCATION_TYPE_DEVICE || device < 0)
      return ACL_ERROR_RT_INVALID_DEVICEID;
    if (flags != ACL_RT_MEM_ACCESS_FLAGS_NONE && flags != ACL_RT_MEM_ACCESS_FLAGS_READ &&
        flags != ACL_RT_MEM_ACCESS_FLAGS_READWRITE)
      return ACL_ERROR_RT_PARAM_INVALID;
    if (!reaches(device, range->memory->device)) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
    range->access[device] = flags;
  }
  return ACL_SUCCESS;
}

SIM_CALL aclrtMemGetAccess(void* pointer, aclrtMemLocation* location, std::uint64_t* flags) {
  SIM_ENTER(aclrtMemGetAccess);
  if (!location || !flags) return ACL_ERROR_INVALID_PARAM;
  const std::lock_guard lock(state().mutex);
  const Range* range = state().find(address(pointer));
  if (!range || range->kind != RangeKind::vmm) return ACL_ERROR_RT_PARAM_INVALID;
  const auto at = range->access.find(physical(static_cast<int>(location->id)));
  *flags = at == range->access.end() ? 0 : static_cast<std::uint64_t>(at->second);
  return ACL_SUCCESS;
}

/// Of drivers from 26.0.RC1 on, and for the address that was mapped.
SIM_CALL aclrtMemRetainAllocationHandle(void* pointer, aclrtDrvMemHandle* handle) {
  SIM_ENTER(aclrtMemRetainAllocationHandle);
  if (!handle) return ACL_ERROR_INVALID_PARAM;
  if (std::atoi(settings().driver.c_str()) < 26) return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
  const std::lock_guard lock(state().mutex);
  const auto at = state().ranges.find(address(pointer));
  if (at == state().ranges.end() || at->second.kind != RangeKind::vmm) return ACL_ERROR_RT_PARAM_INVALID;
  *handle = at->second.handle;
  return ACL_SUCCESS;
}

// ---- between processes

SIM_CALL aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, int type, std::uint64_t flags,
                                         std::uint64_t* number) {
  SIM_ENTER(aclrtMemExportToShareableHandle);
  if (!number || type != ACL_MEM_HANDLE_TYPE_NONE || flags > 1) return ACL_ERROR_INVALID_PARAM;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.handles.find(handle);
  if (at == all.handles.end()) return ACL_ERROR_RT_INVALID_HANDLE;
  if (at->second.exported || at->second.memory->imported) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  at->second.exported = true;
  if (flags == ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION) at->second.memory->facts->unchecked = 1;
  *number = at->second.memory->number();
  all.exported.insert(*number);
  return ACL_SUCCESS;
}

SIM_CALL aclrtMemSetPidToShareableHandle(std::uint64_t number, std::int32_t* numbers, std::size_t count) {
  SIM_ENTER(aclrtMemSetPidToShareableHandle);
  if (!numbers || count == 0) return ACL_ERROR_INVALID_PARAM;
  const auto memory = Memory::import(number);
  if (!memory || memory->facts->unchecked != 0) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  {
    const std::lock_guard lock(state().mutex);
    if (!state().exported.contains(number) && !memory->facts->is_admitted(own_number()))
      return ACL_ERROR_RT_NO_PERMISSION;
  }
  for (std::size_t i = 0; i < count; ++i)
    if (!memory->facts->admit(numbers[i])) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  return ACL_SUCCESS;
}

/// Not in the process that exported it.
SIM_CALL aclrtMemImportFromShareableHandle(std::uint64_t number, std::int32_t ordinal,
                                           aclrtDrvMemHandle* handle) {
  SIM_ENTER(aclrtMemImportFromShareableHandle);
  if (!handle) return ACL_ERROR_INVALID_PARAM;
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  const int device = physical(ordinal);
  if (device < 0) return ACL_ERROR_RT_INVALID_DEVICEID;
  auto memory = Memory::import(number);
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (!memory || all.exported.contains(number) || !memory->facts->is_admitted(own_number()) ||
      !reaches(device, memory->device))
    return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  *handle = add_handle(std::move(memory), device);
  return ACL_SUCCESS;
}
