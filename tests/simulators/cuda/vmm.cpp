// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: memory, addresses, and the mapping of one to the other.
#include <fcntl.h>
#include <unistd.h>

#include "memory.h"

using namespace sim;

namespace {

bool is_unit(std::size_t size) { return size != 0 && size % settings().granularity == 0; }

bool is_valid(const CUmemAllocationProp* prop) {
  return prop && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

CUmemGenericAllocationHandle add_handle(std::shared_ptr<Memory> memory) {
  State& all = state();
  const CUmemGenericAllocationHandle handle = ++all.last_id;
  all.handles[handle] = {std::move(memory), 1};
  return handle;
}

bool is_reserved(CUdeviceptr at, std::size_t size) {
  const State& all = state();
  auto after = all.reservations.upper_bound(at);
  if (after == all.reservations.begin()) return false;
  const auto& [base, reserved] = *std::prev(after);
  return at - base <= reserved && size <= reserved - (at - base);
}

/// The mappings that make up exactly [at, at + size); empty when they do not.
std::vector<Range*> whole_mappings(CUdeviceptr at, std::size_t size) {
  std::vector<Range*> found;
  const CUdeviceptr end = at + size;
  while (at < end) {
    const auto mapped = state().ranges.find(at);
    if (mapped == state().ranges.end() || mapped->second.kind != RangeKind::vmm ||
        mapped->second.size > end - at)
      return {};
    found.push_back(&mapped->second);
    at += mapped->second.size;
  }
  return found;
}

}  // namespace

SIM_CALL cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp* prop, int) {
  SIM_ENTER(cuMemGetAllocationGranularity);
  if (!granularity || !is_valid(prop)) return CUDA_ERROR_INVALID_VALUE;
  *granularity = settings().granularity;
  return CUDA_SUCCESS;
}

SIM_CALL cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  SIM_ENTER(cuMemCreate);
  if (!handle || !is_valid(prop) || !is_unit(size) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  const int device = physical(prop->location.id);
  if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
  if (const CUresult refused = forbid_in_capture()) return refused;
  const std::lock_guard lock(state().mutex);
  auto memory = allocate(device, size, prop->requestedHandleTypes != 0);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = add_handle(std::move(memory));
  return CUDA_SUCCESS;
}

SIM_CALL cuMemRelease(CUmemGenericAllocationHandle handle) {
  SIM_ENTER(cuMemRelease);
  if (const CUresult refused = forbid_in_capture()) return refused;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.handles.find(handle);
  if (at == all.handles.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--at->second.references == 0) all.handles.erase(at);
  return CUDA_SUCCESS;
}

SIM_CALL cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* pointer) {
  SIM_ENTER(cuMemRetainAllocationHandle);
  if (const CUresult refused = forbid_in_capture()) return refused;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const Range* range = all.find(reinterpret_cast<CUdeviceptr>(pointer));
  if (!range || range->kind != RangeKind::vmm) return CUDA_ERROR_INVALID_VALUE;
  for (auto& [number, known] : all.handles)
    if (known.memory == range->memory) {
      ++known.references;
      *handle = number;
      return CUDA_SUCCESS;
    }
  *handle = add_handle(range->memory);
  return CUDA_SUCCESS;
}

SIM_CALL cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle handle) {
  SIM_ENTER(cuMemGetAllocationPropertiesFromHandle);
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.handles.find(handle);
  if (!prop || at == all.handles.end()) return CUDA_ERROR_INVALID_VALUE;
  *prop = {};
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->requestedHandleTypes = at->second.memory->exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
  prop->location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal(at->second.memory->device)};
  return CUDA_SUCCESS;
}

SIM_CALL cuMemAddressReserve(CUdeviceptr* pointer, std::size_t size, std::size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  SIM_ENTER(cuMemAddressReserve);
  if (const CUresult refused = forbid_in_capture()) return refused;
  if (!pointer || !is_unit(size) || flags != 0 || (alignment & (alignment - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state().mutex);
  const CUdeviceptr base = reserve_addresses(size, std::max(alignment, settings().granularity));
  if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  state().reservations[base] = size;
  *pointer = base;
  return CUDA_SUCCESS;
}

/// For tests in the same process: bytes of addresses that are reserved now. Found by dlsym.
extern "C" __attribute__((visibility("default"))) std::size_t sim_reserved() {
  const std::lock_guard lock(state().mutex);
  std::size_t bytes = 0;
  for (const auto& [base, size] : state().reservations) bytes += size;
  return bytes;
}

SIM_CALL cuMemAddressFree(CUdeviceptr pointer, std::size_t size) {
  SIM_ENTER(cuMemAddressFree);
  if (const CUresult refused = forbid_in_capture()) return refused;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.reservations.find(pointer);
  if (at == all.reservations.end() || at->second != size) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = all.ranges.lower_bound(pointer);
  if (mapped != all.ranges.end() && mapped->first < pointer + size) return CUDA_ERROR_INVALID_VALUE;
  free_addresses(pointer, size);
  all.reservations.erase(at);
  return CUDA_SUCCESS;
}

SIM_CALL cuMemMap(CUdeviceptr pointer, std::size_t size, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  SIM_ENTER(cuMemMap);
  if (const CUresult refused = forbid_in_capture()) return refused;
  if (offset != 0 || flags != 0 || !is_unit(size) || pointer % settings().granularity != 0)
    return CUDA_ERROR_INVALID_VALUE;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.handles.find(handle);
  if (at == all.handles.end() || size > at->second.memory->size || !is_reserved(pointer, size))
    return CUDA_ERROR_INVALID_VALUE;
  const auto next = all.ranges.lower_bound(pointer);
  if (all.find(pointer) || (next != all.ranges.end() && next->first < pointer + size))
    return CUDA_ERROR_INVALID_VALUE;
  add_range(pointer, size, RangeKind::vmm, at->second.memory, at->second.memory->device);
  return CUDA_SUCCESS;
}

SIM_CALL cuMemUnmap(CUdeviceptr pointer, std::size_t size) {
  SIM_ENTER(cuMemUnmap);
  if (const CUresult refused = forbid_in_capture()) return refused;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto mapped = whole_mappings(pointer, size);
  if (mapped.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (const Range* range : mapped) all.ranges.erase(range->base);
  return CUDA_SUCCESS;
}

SIM_CALL cuMemSetAccess(CUdeviceptr pointer, std::size_t size, const CUmemAccessDesc* wanted,
                        std::size_t count) {
  SIM_ENTER(cuMemSetAccess);
  if (const CUresult refused = forbid_in_capture()) return refused;
  const std::lock_guard lock(state().mutex);
  const auto mapped = whole_mappings(pointer, size);
  if (!wanted || mapped.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    const int device = physical(wanted[i].location.id);
    const int flags = wanted[i].flags;
    if (wanted[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0)
      return CUDA_ERROR_INVALID_DEVICE;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return CUDA_ERROR_INVALID_VALUE;
    for (Range* range : mapped)
      if (!settings().can_access(device, range->device)) return CUDA_ERROR_INVALID_DEVICE;
    for (Range* range : mapped) range->access[device] = flags;
  }
  return CUDA_SUCCESS;
}

SIM_CALL cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr pointer) {
  SIM_ENTER(cuMemGetAccess);
  if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state().mutex);
  const Range* range = state().find(pointer);
  if (!range || range->kind != RangeKind::vmm) return CUDA_ERROR_INVALID_VALUE;
  const auto at = range->access.find(physical(location->id));
  *flags = at == range->access.end() ? 0 : static_cast<unsigned long long>(at->second);
  return CUDA_SUCCESS;
}

SIM_CALL cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, int type,
                                      unsigned long long flags) {
  SIM_ENTER(cuMemExportToShareableHandle);
  if (const CUresult refused = forbid_in_capture()) return refused;
  if (!out || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.handles.find(handle);
  if (at == all.handles.end() || !at->second.memory->exportable || at->second.memory->imported)
    return CUDA_ERROR_INVALID_VALUE;
  const int fd = ::fcntl(at->second.memory->fd, F_DUPFD, 0);  // programs inherit it
  if (fd < 0) return CUDA_ERROR_UNKNOWN;
  *static_cast<int*>(out) = fd;
  return CUDA_SUCCESS;
}

SIM_CALL cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle, int type) {
  SIM_ENTER(cuMemImportFromShareableHandle);
  if (const CUresult refused = forbid_in_capture()) return refused;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  auto memory = Memory::import(static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle)));
  if (!memory) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state().mutex);
  *handle = add_handle(std::move(memory));
  return CUDA_SUCCESS;
}
