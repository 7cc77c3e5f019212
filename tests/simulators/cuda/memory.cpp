// SPDX-License-Identifier: Apache-2.0
// Physical memory, and where it appears among the process's addresses.
#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "stream.h"

using namespace sim;

namespace sim {

namespace {

constexpr std::size_t kPage = 4096;
constexpr char kMagic[16] = "simulated-cuda1";

/// The last page of each memfd.
struct Trailer {
  char magic[16];
  std::uint64_t id;
  std::uint64_t size;
  std::int32_t device;
  std::int32_t exportable;
};

std::uint64_t random_id() {
  static thread_local std::random_device source;
  return std::uint64_t{source()} << 32 | source();
}

}  // namespace

bool Memory::map() {
  void* at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  bytes = at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
  return bytes != nullptr;
}

std::shared_ptr<Memory> Memory::create(int device, std::size_t size, bool exportable) {
  std::shared_ptr<Memory> memory(new Memory);
  memory->fd = ::memfd_create("simulated-cuda", MFD_CLOEXEC);
  memory->size = size;
  memory->device = device;
  memory->exportable = exportable;
  memory->id = random_id();
  Trailer trailer{{}, memory->id, size, device, exportable};
  std::memcpy(trailer.magic, kMagic, sizeof kMagic);
  const std::size_t whole = (size + kPage - 1) / kPage * kPage;
  if (memory->fd < 0 || ::ftruncate(memory->fd, static_cast<off_t>(whole + kPage)) != 0 ||
      ::pwrite(memory->fd, &trailer, sizeof trailer, static_cast<off_t>(whole)) != sizeof trailer ||
      !memory->map())
    return nullptr;
  return memory;
}

std::shared_ptr<Memory> Memory::import(int fd) {
  struct stat info {};
  Trailer trailer{};
  if (::fstat(fd, &info) != 0 || info.st_size < static_cast<off_t>(2 * kPage) ||
      ::pread(fd, &trailer, sizeof trailer, info.st_size - static_cast<off_t>(kPage)) != sizeof trailer ||
      std::memcmp(trailer.magic, kMagic, sizeof kMagic) != 0 ||
      trailer.size > static_cast<std::uint64_t>(info.st_size) - kPage)
    return nullptr;
  std::shared_ptr<Memory> memory(new Memory);
  memory->fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  memory->size = trailer.size;
  memory->device = trailer.device;
  memory->exportable = trailer.exportable != 0;
  memory->imported = true;
  memory->id = trailer.id;
  return memory->fd >= 0 && memory->map() ? memory : nullptr;
}

Memory::~Memory() {
  if (bytes) ::munmap(bytes, size);
  if (fd >= 0) ::close(fd);
  if (counted) state().used.at(static_cast<std::size_t>(device)) -= size;
}

Range* State::find(CUdeviceptr at) {
  auto after = ranges.upper_bound(at);
  if (after == ranges.begin()) return nullptr;
  Range& range = std::prev(after)->second;
  return at - range.base < range.size ? &range : nullptr;
}

std::shared_ptr<Memory> allocate(int device, std::size_t size, bool exportable) {
  auto& used = state().used.at(static_cast<std::size_t>(device));
  if (size > settings().memory || used > settings().memory - size) return nullptr;
  auto memory = Memory::create(device, size, exportable);
  if (!memory) return nullptr;
  memory->counted = true;
  used += size;
  return memory;
}

CUdeviceptr reserve_addresses(std::size_t size, std::size_t alignment) {
  const std::size_t slack = alignment > kPage ? alignment : 0;
  void* at = ::mmap(nullptr, size + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return 0;
  auto begin = reinterpret_cast<CUdeviceptr>(at);
  if (slack == 0) return begin;
  const CUdeviceptr aligned = (begin + alignment - 1) / alignment * alignment;
  if (aligned > begin) ::munmap(at, aligned - begin);
  if (aligned + size < begin + size + slack)
    ::munmap(reinterpret_cast<void*>(aligned + size), begin + slack - aligned);
  return aligned;
}

void free_addresses(CUdeviceptr at, std::size_t size) { ::munmap(reinterpret_cast<void*>(at), size); }

Range& add_range(CUdeviceptr base, std::size_t size, RangeKind kind, std::shared_ptr<Memory> memory,
                 int device) {
  State& all = state();
  Range range;
  range.base = base;
  range.size = size;
  range.kind = kind;
  range.memory = std::move(memory);
  range.device = device;
  range.context = handle_of(current());
  range.buffer_id = ++all.last_id;
  return all.ranges[base] = std::move(range);
}

}  // namespace sim

namespace {

std::size_t rounded(std::size_t size) { return (size + 4095) / 4096 * 4096; }

CUresult allocate_range(CUdeviceptr* pointer, std::size_t size, RangeKind kind) {
  if (!pointer || size == 0) return CUDA_ERROR_INVALID_VALUE;
  Context* context = current();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult refused = forbid_in_capture()) return refused;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  auto memory = allocate(context->device, size, false);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUdeviceptr base = reserve_addresses(rounded(size), std::size_t{2} << 20);
  if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  add_range(base, size, kind, std::move(memory), context->device);
  *pointer = base;
  return CUDA_SUCCESS;
}

CUresult allocate_host(void** pointer, std::size_t size) {
  if (!pointer || size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult refused = forbid_in_capture()) return refused;
  void* at = ::mmap(nullptr, rounded(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(state().mutex);
  add_range(reinterpret_cast<CUdeviceptr>(at), size, RangeKind::host, nullptr, current()->device);
  *pointer = at;
  return CUDA_SUCCESS;
}

bool is_host(const Range& range) {
  return range.kind == RangeKind::host || range.kind == RangeKind::registered;
}

}  // namespace

SIM_CALL cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  SIM_ENTER(cuMemGetInfo);
  if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  const State& all = state();
  *total = settings().memory;
  *free = *total - all.used.at(static_cast<std::size_t>(current()->device));
  return CUDA_SUCCESS;
}

SIM_CALL cuMemAlloc_v2(CUdeviceptr* pointer, std::size_t size) {
  SIM_ENTER(cuMemAlloc);
  return allocate_range(pointer, size, RangeKind::allocation);
}

SIM_CALL cuMemAllocManaged(CUdeviceptr* pointer, std::size_t size, unsigned) {
  SIM_ENTER(cuMemAllocManaged);
  return allocate_range(pointer, size, RangeKind::managed);
}

/// A borrower's later reads are undefined; here they give 0xdb, so that tests notice.
SIM_CALL cuMemFree_v2(CUdeviceptr pointer) {
  SIM_ENTER(cuMemFree);
  if (pointer == 0) return CUDA_SUCCESS;
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult refused = forbid_in_capture()) return refused;
  Stream::synchronize_all(*current());
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.ranges.find(pointer);
  if (at == all.ranges.end() ||
      (at->second.kind != RangeKind::allocation && at->second.kind != RangeKind::managed))
    return CUDA_ERROR_INVALID_VALUE;
  const Range range = at->second;
  all.ranges.erase(at);
  std::memset(range.memory->bytes, 0xdb, range.size);
  free_addresses(range.base, rounded(range.size));
  return CUDA_SUCCESS;
}

SIM_CALL cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size, CUdeviceptr pointer) {
  SIM_ENTER(cuMemGetAddressRange);
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const Range* range = all.find(pointer);
  if (!range || range->kind == RangeKind::registered) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = range->base;
  if (size) *size = range->size;
  return CUDA_SUCCESS;
}

// ---- host memory

SIM_CALL cuMemAllocHost_v2(void** pointer, std::size_t size) {
  SIM_ENTER(cuMemAllocHost);
  return allocate_host(pointer, size);
}

SIM_CALL cuMemHostAlloc(void** pointer, std::size_t size, unsigned) {
  SIM_ENTER(cuMemHostAlloc);
  return allocate_host(pointer, size);
}

SIM_CALL cuMemFreeHost(void* pointer) {
  SIM_ENTER(cuMemFreeHost);
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.ranges.find(reinterpret_cast<CUdeviceptr>(pointer));
  if (at == all.ranges.end() || at->second.kind != RangeKind::host) return CUDA_ERROR_INVALID_VALUE;
  ::munmap(pointer, rounded(at->second.size));
  all.ranges.erase(at);
  return CUDA_SUCCESS;
}

namespace {

/// Returns whether all these pages are mapped, and writable or else registered for reading.
bool is_mapped(CUdeviceptr at, std::size_t size, bool for_reading) {
  std::ifstream maps("/proc/self/maps");
  CUdeviceptr end = at;
  for (std::string line; end < at + size && std::getline(maps, line);) {
    CUdeviceptr from = 0;
    CUdeviceptr to = 0;
    char rights[5] = "";
    if (std::sscanf(line.c_str(), "%llx-%llx %4s", &from, &to, rights) != 3 || to <= end) continue;
    if (from > end || rights[0] != 'r' || (rights[1] != 'w' && !for_reading)) return false;
    end = to;
  }
  return end >= at + size;
}

}  // namespace

SIM_CALL cuMemHostRegister_v2(void* pointer, std::size_t size, unsigned flags) {
  SIM_ENTER(cuMemHostRegister);
  if (!pointer || size == 0 || flags > 15) return CUDA_ERROR_INVALID_VALUE;
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult refused = forbid_in_capture()) return refused;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto base = reinterpret_cast<CUdeviceptr>(pointer);
  if (all.find(base) || all.find(base + size - 1)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (!is_mapped(base, size, (flags & kHostRegisterReadOnly) != 0)) return CUDA_ERROR_INVALID_VALUE;
  Range& range = add_range(base, size, RangeKind::registered, nullptr, current()->device);
  if ((flags & kHostRegisterMapped) == 0) range.pinned = PinnedPages::take(pointer, size);
  return CUDA_SUCCESS;
}

/// It waits for the device (seen on an H100).
SIM_CALL cuMemHostUnregister(void* pointer) {
  SIM_ENTER(cuMemHostUnregister);
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult refused = forbid_in_capture()) return refused;
  State& all = state();
  {
    const std::lock_guard lock(all.mutex);
    const auto at = all.ranges.find(reinterpret_cast<CUdeviceptr>(pointer));
    if (at == all.ranges.end() || at->second.kind != RangeKind::registered)
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    at->second.is_leaving = true;  // a copy that another thread gives here now is lost
  }
  Stream::synchronize_all(*current());
  std::this_thread::sleep_for(std::chrono::microseconds(200));  // which a real driver takes for a MiB
  const std::lock_guard lock(all.mutex);
  all.ranges.erase(reinterpret_cast<CUdeviceptr>(pointer));
  return CUDA_SUCCESS;
}

SIM_CALL cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* pointer, unsigned flags) {
  SIM_ENTER(cuMemHostGetDevicePointer);
  if (!device || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const Range* range = all.find(reinterpret_cast<CUdeviceptr>(pointer));
  if (!range || !is_host(*range)) return CUDA_ERROR_INVALID_VALUE;
  *device = reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}

// ---- attributes

namespace {

template <class T>
CUresult put(void* out, T value) {
  std::memcpy(out, &value, sizeof value);
  return CUDA_SUCCESS;
}

CUresult attribute_of(const Range& range, int attribute, void* out) {
  const bool host = is_host(range);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return put(out, range.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(out, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return put(out, range.base);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return put<unsigned long long>(out, range.buffer_id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return put(out, unsigned{range.kind == RangeKind::managed});
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put(out, ordinal(range.device));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put(out, unsigned{range.kind == RangeKind::allocation});
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return put(out, range.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return put<std::size_t>(out, range.size);
    case CU_POINTER_ATTRIBUTE_MAPPED: return put(out, 1U);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(out, std::uint64_t{range.kind == RangeKind::vmm && range.memory->exportable});
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

std::size_t size_of_attribute(int attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED: return 4;
    default: return 8;
  }
}

}  // namespace

SIM_CALL cuPointerGetAttribute(void* out, int attribute, CUdeviceptr pointer) {
  SIM_ENTER(cuPointerGetAttribute);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const Range* range = all.find(pointer);
  return range ? attribute_of(*range, attribute, out) : CUDA_ERROR_INVALID_VALUE;
}

/// Returns success and zeros for memory that CUDA did not allocate.
SIM_CALL cuPointerGetAttributes(unsigned count, int* attributes, void** out, CUdeviceptr pointer) {
  SIM_ENTER(cuPointerGetAttributes);
  if (!attributes || !out) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult refused = forbid_in_capture())
    return refused;  // CUDA refuses this for pools only; the simulator refuses it for all memory
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const Range* range = all.find(pointer);
  for (unsigned i = 0; i < count; ++i) {
    if (range) {
      if (const CUresult result = attribute_of(*range, attributes[i], out[i])) return result;
    } else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      put(out[i], -2);
    } else {
      std::memset(out[i], 0, size_of_attribute(attributes[i]));
    }
  }
  return CUDA_SUCCESS;
}
