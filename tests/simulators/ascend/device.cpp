// SPDX-License-Identifier: Apache-2.0
// Devices, contexts and peers.
#include <unistd.h>

#include <cstring>

#include "state.h"
#include "stream.h"

using namespace sim;

namespace sim {

int physical(int ordinal) noexcept {
  const auto& visible = settings().visible;
  return ordinal < 0 || static_cast<std::size_t>(ordinal) >= visible.size()
             ? -1
             : visible[static_cast<std::size_t>(ordinal)];
}

Context*& current() noexcept {
  static thread_local Context* context = nullptr;
  return context;
}

std::int32_t own_number() { return ::getpid() + settings().number_offset; }

bool reaches(int from, int to) { return from == to || state().peers.contains({from, to}); }

}  // namespace sim

SIM_CALL aclrtGetDeviceCount(std::uint32_t* count) {
  SIM_ENTER(aclrtGetDeviceCount);
  if (!count) return ACL_ERROR_INVALID_PARAM;
  *count = static_cast<std::uint32_t>(settings().visible.size());
  return *count == 0 ? ACL_ERROR_RT_NO_DEVICE : ACL_SUCCESS;
}

SIM_CALL aclrtSetDevice(std::int32_t ordinal) {
  SIM_ENTER(aclrtSetDevice);
  const int number = physical(ordinal);
  if (number < 0) return ACL_ERROR_RT_INVALID_DEVICEID;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  Context*& context = all.contexts[number];
  if (!context) {
    context = new Context{number, nullptr};  // for the rest of the process
    context->stream = Stream::make(*context);
  }
  current() = context;
  return ACL_SUCCESS;
}

SIM_CALL aclrtGetDevice(std::int32_t* ordinal) {
  SIM_ENTER(aclrtGetDevice);
  if (!ordinal) return ACL_ERROR_INVALID_PARAM;
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  for (std::size_t i = 0; i < settings().visible.size(); ++i)
    if (settings().visible[i] == current()->device) *ordinal = static_cast<std::int32_t>(i);
  return ACL_SUCCESS;
}

SIM_CALL aclrtGetCurrentContext(aclrtContext* context) {
  SIM_ENTER(aclrtGetCurrentContext);
  if (!context) return ACL_ERROR_INVALID_PARAM;
  *context = current();
  return *context ? ACL_SUCCESS : ACL_ERROR_RT_CONTEXT_NULL;
}

SIM_CALL aclrtSetCurrentContext(aclrtContext wanted) {
  SIM_ENTER(aclrtSetCurrentContext);
  if (!wanted) return ACL_ERROR_INVALID_PARAM;
  const std::lock_guard lock(state().mutex);
  for (const auto& [device, context] : state().contexts)
    if (context == wanted) {
      current() = context;
      return ACL_SUCCESS;
    }
  return ACL_ERROR_RT_CONTEXT_NULL;
}

SIM_CALL aclrtSynchronizeDevice() {
  SIM_ENTER(aclrtSynchronizeDevice);
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  return Stream::synchronize_all(*current());
}

SIM_CALL aclrtDeviceGetUuid(std::int32_t ordinal, aclrtUuid* uuid) {
  SIM_ENTER(aclrtDeviceGetUuid);
  if (!uuid) return ACL_ERROR_INVALID_PARAM;
  if (physical(ordinal) < 0) return ACL_ERROR_RT_INVALID_DEVICEID;
  uuid_of(physical(ordinal), uuid->bytes);
  return ACL_SUCCESS;
}

SIM_CALL aclrtGetPhyDevIdByLogicDevId(std::int32_t ordinal, std::int32_t* number) {
  SIM_ENTER(aclrtGetPhyDevIdByLogicDevId);
  if (!number) return ACL_ERROR_INVALID_PARAM;
  *number = physical(ordinal);
  return *number < 0 ? ACL_ERROR_RT_INVALID_DEVICEID : ACL_SUCCESS;
}

SIM_CALL aclrtDeviceGetBareTgid(std::int32_t* number) {
  SIM_ENTER(aclrtDeviceGetBareTgid);
  if (!number) return ACL_ERROR_INVALID_PARAM;
  *number = own_number();
  return ACL_SUCCESS;
}

// ---- peers: one direction, from the current device

SIM_CALL aclrtDeviceCanAccessPeer(std::int32_t* can, std::int32_t from, std::int32_t to) {
  SIM_ENTER(aclrtDeviceCanAccessPeer);
  if (!can || from == to) return ACL_ERROR_INVALID_PARAM;
  if (physical(from) < 0 || physical(to) < 0) return ACL_ERROR_RT_INVALID_DEVICEID;
  *can = settings().can_access(physical(from), physical(to)) ? 1 : 0;
  return ACL_SUCCESS;
}

SIM_CALL aclrtDeviceEnablePeerAccess(std::int32_t peer, std::uint32_t flags) {
  SIM_ENTER(aclrtDeviceEnablePeerAccess);
  if (flags != 0) return ACL_ERROR_INVALID_PARAM;
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  const int to = physical(peer);
  if (to < 0 || to == current()->device) return ACL_ERROR_RT_INVALID_DEVICEID;
  if (!settings().can_access(current()->device, to)) return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
  const std::lock_guard lock(state().mutex);
  const bool is_new = state().peers.insert({current()->device, to}).second;
  return is_new || !settings().peers_once ? ACL_SUCCESS : ACL_ERROR_RT_DRV_INTERNAL_ERROR;
}

SIM_CALL aclrtDeviceDisablePeerAccess(std::int32_t peer) {
  SIM_ENTER(aclrtDeviceDisablePeerAccess);
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  const std::lock_guard lock(state().mutex);
  return state().peers.erase({current()->device, physical(peer)}) == 1 ? ACL_SUCCESS
                                                                       : ACL_ERROR_RT_PARAM_INVALID;
}

SIM_CALL aclrtDevicePeerAccessStatus(std::int32_t from, std::int32_t to, std::int32_t* status) {
  SIM_ENTER(aclrtDevicePeerAccessStatus);
  if (!status) return ACL_ERROR_INVALID_PARAM;
  if (physical(from) < 0 || physical(to) < 0) return ACL_ERROR_RT_INVALID_DEVICEID;
  const std::lock_guard lock(state().mutex);
  *status = reaches(physical(from), physical(to)) ? 1 : 0;
  return ACL_SUCCESS;
}
