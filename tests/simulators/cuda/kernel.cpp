// SPDX-License-Identifier: Apache-2.0
// Modules hold one kernel, copy_byte(to, from), whatever their image says. Unlike a copy it finds only what its own
// device may use, and nothing survives what it does wrong: its context fails.
#include <cstring>

#include "stream.h"

using namespace sim;

namespace {

constexpr char kName[] = "copy_byte";

bool reaches(const Range& range, const Context& context, bool writes) {
  switch (range.kind) {
    case RangeKind::allocation:
      return range.device == context.device || context.peers.contains(range.device);
    case RangeKind::ipc: return range.device == context.device;  // who opened it; peers do not count
    case RangeKind::vmm: {
      const auto flags = range.access.find(context.device);
      if (flags == range.access.end()) return false;
      return writes ? flags->second == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                    : flags->second != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    }
    default: return true;
  }
}

std::byte* byte_at(CUdeviceptr at, const Context& context, bool writes) {
  const Range* range = state().find(at);
  return range && reaches(*range, context, writes) ? range->host(at) : nullptr;
}

void copy_byte(CUdeviceptr to, CUdeviceptr from, Context& context) {
  const std::lock_guard lock(state().mutex);
  std::byte* const target = byte_at(to, context, true);
  const std::byte* const source = byte_at(from, context, false);
  if (target && source) *target = *source;
  else context.failed = CUDA_ERROR_ILLEGAL_ADDRESS;
}

}  // namespace

SIM_CALL cuModuleLoadData(void** module, const void* image) {
  SIM_ENTER(cuModuleLoadData);
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  *module = current();
  return CUDA_SUCCESS;
}

SIM_CALL cuModuleGetFunction(void** function, void* module, const char* name) {
  SIM_ENTER(cuModuleGetFunction);
  if (!function || !module || !name) return CUDA_ERROR_INVALID_VALUE;
  if (std::strcmp(name, kName) != 0) return CUDA_ERROR_NOT_FOUND;
  *function = module;
  return CUDA_SUCCESS;
}

SIM_CALL cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream handle, void** parameters, void**) {
  SIM_ENTER(cuLaunchKernel);
  Stream* stream = Stream::find(handle);
  if (!stream) return current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  if (function != stream->context || !parameters) return CUDA_ERROR_INVALID_HANDLE;
  const CUdeviceptr to = *static_cast<CUdeviceptr*>(parameters[0]);
  const CUdeviceptr from = *static_cast<CUdeviceptr*>(parameters[1]);
  return stream->submit([to, from, context = stream->context] { copy_byte(to, from, *context); });
}
