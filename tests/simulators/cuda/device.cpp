// SPDX-License-Identifier: Apache-2.0
// Devices, contexts and peers.
#include <cstdio>
#include <cstring>

#include "state.h"
#include "stream.h"

using namespace sim;

namespace sim {

int physical(CUdevice ordinal) noexcept {
  const auto& visible = settings().visible;
  return ordinal < 0 || static_cast<std::size_t>(ordinal) >= visible.size()
             ? -1
             : visible[static_cast<std::size_t>(ordinal)];
}

CUdevice ordinal(int physical) noexcept {
  const auto& visible = settings().visible;
  for (std::size_t i = 0; i < visible.size(); ++i)
    if (visible[i] == physical) return static_cast<CUdevice>(i);
  return -1;
}

std::vector<CUcontext>& context_stack() noexcept {
  static thread_local std::vector<CUcontext> stack;
  return stack;
}

Context* current() noexcept {
  const auto& stack = context_stack();
  return stack.empty() ? nullptr : of(stack.back());
}

}  // namespace sim

namespace {

bool is_context(CUcontext context) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  for (const auto& [device, primary] : all.primary)
    if (primary == context && all.primary_uses[device] > 0) return true;
  return false;
}

int attribute_of(int attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      return settings().is_missing("attribute" + std::to_string(attribute)) ? 0 : 1;
    default: return 0;
  }
}

}  // namespace

SIM_CALL cuDeviceGetCount(int* count) {
  SIM_ENTER(cuDeviceGetCount);
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(settings().visible.size());
  return CUDA_SUCCESS;
}

SIM_CALL cuDeviceGet(CUdevice* device, int ordinal) {
  SIM_ENTER(cuDeviceGet);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (physical(ordinal) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

SIM_CALL cuDeviceGetName(char* name, int length, CUdevice device) {
  SIM_ENTER(cuDeviceGetName);
  if (!name || length < 1) return CUDA_ERROR_INVALID_VALUE;
  if (physical(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<std::size_t>(length), "Simulated GPU %d", physical(device));
  return CUDA_SUCCESS;
}

SIM_CALL cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  SIM_ENTER(cuDeviceGetUuid);
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  if (physical(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  uuid_of(physical(device), uuid->bytes);
  return CUDA_SUCCESS;
}

SIM_CALL cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  SIM_ENTER(cuDeviceTotalMem);
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (physical(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = settings().memory;
  return CUDA_SUCCESS;
}

SIM_CALL cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  SIM_ENTER(cuDeviceGetAttribute);
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (physical(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute_of(attribute);
  return CUDA_SUCCESS;
}

SIM_CALL cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  SIM_ENTER(cuDeviceGetPCIBusId);
  if (!text || length < 13) return CUDA_ERROR_INVALID_VALUE;
  if (physical(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0", physical(device) + 1);
  return CUDA_SUCCESS;
}

SIM_CALL cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  SIM_ENTER(cuDeviceCanAccessPeer);
  if (!can) return CUDA_ERROR_INVALID_VALUE;
  if (physical(device) < 0 || physical(peer) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer && settings().can_access(physical(device), physical(peer)) ? 1 : 0;
  return CUDA_SUCCESS;
}

// ---- contexts

SIM_CALL cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  SIM_ENTER(cuDevicePrimaryCtxRetain);
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  const int number = physical(device);
  if (number < 0) return CUDA_ERROR_INVALID_DEVICE;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  CUcontext& primary = all.primary[number];
  if (!primary) {
    auto* made = new Context{number, {}, nullptr};  // for the rest of the process
    made->legacy = Stream::make(*made, 0);
    primary = handle_of(made);
  }
  ++all.primary_uses[number];
  *context = primary;
  return CUDA_SUCCESS;
}

SIM_CALL cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  SIM_ENTER(cuDevicePrimaryCtxRelease);
  const int number = physical(device);
  if (number < 0) return CUDA_ERROR_INVALID_DEVICE;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (all.primary_uses[number] == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --all.primary_uses[number];
  return CUDA_SUCCESS;
}

SIM_CALL cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  SIM_ENTER(cuDevicePrimaryCtxGetState);
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  const int number = physical(device);
  if (number < 0) return CUDA_ERROR_INVALID_DEVICE;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  *flags = 0;
  *active = all.primary_uses[number] > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

SIM_CALL cuCtxPushCurrent_v2(CUcontext context) {
  SIM_ENTER_ANYWAY(cuCtxPushCurrent);
  if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  context_stack().push_back(context);
  return CUDA_SUCCESS;
}

SIM_CALL cuCtxPopCurrent_v2(CUcontext* context) {
  SIM_ENTER_ANYWAY(cuCtxPopCurrent);
  if (context_stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = context_stack().back();
  context_stack().pop_back();
  return CUDA_SUCCESS;
}

SIM_CALL cuCtxGetCurrent(CUcontext* context) {
  SIM_ENTER_ANYWAY(cuCtxGetCurrent);
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  *context = handle_of(current());
  return CUDA_SUCCESS;
}

SIM_CALL cuCtxSetCurrent(CUcontext context) {
  SIM_ENTER_ANYWAY(cuCtxSetCurrent);
  if (context && !is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context_stack().empty()) context_stack().pop_back();
  if (context) context_stack().push_back(context);
  return CUDA_SUCCESS;
}

SIM_CALL cuCtxGetDevice(CUdevice* device) {
  SIM_ENTER_ANYWAY(cuCtxGetDevice);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = ordinal(current()->device);
  return CUDA_SUCCESS;
}

SIM_CALL cuCtxSynchronize() {
  SIM_ENTER(cuCtxSynchronize);
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult refused = forbid_in_capture()) return refused;
  Stream::synchronize_all(*current());
  return result_in(current());
}

// ---- peers

SIM_CALL cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  SIM_ENTER(cuCtxEnablePeerAccess);
  Context* me = current();
  if (!me || !is_context(peer) || of(peer) == me) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!settings().can_access(me->device, of(peer)->device)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  const std::lock_guard lock(state().mutex);
  return me->peers.insert(of(peer)->device).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

SIM_CALL cuCtxDisablePeerAccess(CUcontext peer) {
  SIM_ENTER(cuCtxDisablePeerAccess);
  Context* me = current();
  if (!me || !is_context(peer)) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard lock(state().mutex);
  return me->peers.erase(of(peer)->device) == 1 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

// ---- for tests

/// From now on the device's primary context has failed with this code.
extern "C" __attribute__((visibility("default"))) void sim_break(int number, int code) {
  const std::lock_guard lock(state().mutex);
  of(state().primary.at(physical(number)))->failed = code;
}

/// From now on all calls fail as at the end of a process whose driver has ended first.
extern "C" __attribute__((visibility("default"))) void sim_shut_down() { state().has_ended = true; }
