// SPDX-License-Identifier: Apache-2.0
// Legacy handles of memory. They name the exporter's descriptor, so they die with it, as the real ones.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "ipc.h"
#include "memory.h"

using namespace sim;

namespace sim {

int open_in(const IpcName& name) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", name.pid, name.fd);
  return ::open(path, O_RDWR | O_CLOEXEC);
}

}  // namespace sim

SIM_CALL cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  SIM_ENTER(cuIpcGetMemHandle);
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.ranges.find(pointer);
  if (at == all.ranges.end() || at->second.kind != RangeKind::allocation) return CUDA_ERROR_INVALID_VALUE;
  const Memory& memory = *at->second.memory;
  const IpcName name{IpcName::kMemory, ::getpid(), memory.fd, memory.id};
  *handle = {};
  std::memcpy(handle->reserved, &name, sizeof name);
  return CUDA_SUCCESS;
}

SIM_CALL cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned flags) {
  SIM_ENTER(cuIpcOpenMemHandle);
  if (!pointer || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  Context* context = current();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult refused = forbid_in_capture()) return refused;
  IpcName name;
  std::memcpy(&name, handle.reserved, sizeof name);
  if (name.what != IpcName::kMemory) return CUDA_ERROR_INVALID_HANDLE;
  if (name.pid == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  for (auto& [base, range] : all.ranges) {
    if (range.kind != RangeKind::ipc || range.memory->id != name.id) continue;
    if (range.context != handle_of(context)) continue;
    ++range.opened;
    *pointer = base;
    return CUDA_SUCCESS;
  }
  const int fd = open_in(name);
  if (fd < 0) return CUDA_ERROR_INVALID_HANDLE;
  auto memory = Memory::import(fd);
  ::close(fd);
  if (!memory || memory->id != name.id) return CUDA_ERROR_INVALID_HANDLE;
  if (!settings().can_access(context->device, memory->device)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  const std::size_t size = memory->size;
  const CUdeviceptr base = reserve_addresses((size + 4095) / 4096 * 4096, std::size_t{2} << 20);
  if (base == 0) return CUDA_ERROR_MAP_FAILED;
  add_range(base, size, RangeKind::ipc, std::move(memory), context->device);
  *pointer = base;
  return CUDA_SUCCESS;
}

SIM_CALL cuIpcCloseMemHandle(CUdeviceptr pointer) {
  SIM_ENTER(cuIpcCloseMemHandle);
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.ranges.find(pointer);
  if (at == all.ranges.end() || at->second.kind != RangeKind::ipc) return CUDA_ERROR_INVALID_VALUE;
  if (--at->second.opened > 0) return CUDA_SUCCESS;
  free_addresses(at->first, (at->second.size + 4095) / 4096 * 4096);
  all.ranges.erase(at);
  return CUDA_SUCCESS;
}
