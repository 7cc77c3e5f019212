// SPDX-License-Identifier: Apache-2.0
// Modules hold the kernels copy_byte(to, from) and onecopy_copy_ranges(table), for any image. Unlike a copy they find
// only memory that their own device may use, and a wrong access is final: its context fails.
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "graph.h"

using namespace sim;

namespace {

bool reaches(const Range& range, const Context& context, bool writes) {
  switch (range.kind) {
    case RangeKind::allocation:
      return range.device == context.device || context.peers.contains(range.device);
    case RangeKind::ipc: return range.device == context.device;  // the opener; peers do not count
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

CUdeviceptr address_in(const std::byte* bytes, std::size_t at) {
  CUdeviceptr address = 0;
  std::memcpy(&address, bytes + at, sizeof address);
  return address;
}

/// A fault on one device ends the work of the process on all (seen on two H100). REQUIRES: state().mutex.
void fault() {
  for (const auto& [number, context] : state().primary) of(context)->failed = CUDA_ERROR_ILLEGAL_ADDRESS;
}

/// REQUIRES: state().mutex.
void copy_one(CUdeviceptr to, CUdeviceptr from, Context& context) {
  std::byte* const target = byte_at(to, context, true);
  const std::byte* const source = byte_at(from, context, false);
  if (target && source) *target = *source;
  else fault();
}

void copy_byte(const std::byte* bytes, std::array<unsigned, 3>, Context& context) {
  const std::lock_guard lock(state().mutex);
  copy_one(address_in(bytes, 0), address_in(bytes, 8), context);
}

/// A table of 64 rows: to, from, bytes. Row y of the grid does row y of the table.
void copy_ranges(const std::byte* bytes, std::array<unsigned, 3> grid, Context& context) {
  const std::lock_guard lock(state().mutex);
  for (unsigned row = 0; row < grid[1]; ++row) {
    const std::byte* const at = bytes + 8 + 24 * row;
    const CUdeviceptr to = address_in(at, 0), from = address_in(at, 8);
    for (CUdeviceptr i = 0, size = address_in(at, 16); i < size && !context.failed; ++i)
      copy_one(to + i, from + i, context);
  }
}

void note_byte(const std::byte* bytes, std::array<unsigned, 3>, Stream& stream) {
  note_use(stream, address_in(bytes, 0), 1, true);
  note_use(stream, address_in(bytes, 8), 1, false);
}

void note_ranges(const std::byte* bytes, std::array<unsigned, 3> grid, Stream& stream) {
  for (unsigned row = 0; row < grid[1]; ++row) {
    const std::byte* const at = bytes + 8 + 24 * row;
    note_use(stream, address_in(at, 0), address_in(at, 16), true);
    note_use(stream, address_in(at, 8), address_in(at, 16), false);
  }
}

/// One for each context, never destroyed.
Kernel* find_kernel(Context* context, const char* name) {
  static std::map<std::pair<Context*, std::string>, Kernel>& all =
      *new std::map<std::pair<Context*, std::string>, Kernel>;
  const std::lock_guard lock(state().mutex);
  const auto known = all.find({context, name});
  if (known != all.end()) return &known->second;
  const Kernel kernels[] = {
      {"copy_byte", {{0, 8}, {8, 8}}, &copy_byte, &note_byte, context},
      {"onecopy_copy_ranges", {{0, 8 + 24 * 64}}, &copy_ranges, &note_ranges, context}};
  for (const Kernel& kernel : kernels)
    if (std::strcmp(kernel.name, name) == 0)
      return &all.emplace(std::pair{context, name}, kernel).first->second;
  return nullptr;
}

}  // namespace

SIM_CALL cuModuleLoadData(void** module, const void* image) {
  SIM_ENTER(cuModuleLoadData);
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult refused = forbid_in_capture()) return refused;
  *module = current();
  return CUDA_SUCCESS;
}

SIM_CALL cuModuleGetFunction(void** function, void* module, const char* name) {
  SIM_ENTER(cuModuleGetFunction);
  if (!function || !module || !name) return CUDA_ERROR_INVALID_VALUE;
  *function = find_kernel(static_cast<Context*>(module), name);
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

SIM_CALL cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream handle,
                        void** parameters, void** extra) {
  SIM_ENTER(cuLaunchKernel);
  Stream* stream = Stream::find(handle);
  if (!stream) return current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  if (!function || static_cast<Kernel*>(function)->context != stream->context)
    return CUDA_ERROR_INVALID_HANDLE;
  auto node = std::make_shared<Node>();
  const CUDA_KERNEL_NODE_PARAMS launch{function, x,      y,          z,     block_x, block_y,
                                       block_z,  shared, parameters, extra, nullptr, nullptr};
  if (const CUresult result = node->set(launch)) return result;
  return record_or_submit(*stream, std::move(node));
}
