// SPDX-License-Identifier: Apache-2.0
// Physical memory, and where it appears among the process's addresses.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <random>

#include "state.h"
#include "stream.h"

using namespace sim;

namespace sim {

namespace {

constexpr char kMagic[16] = "simulated-npu-1";

/// 16 bits of it are part of a memory's number.
std::uint64_t random_id() {
  static thread_local std::random_device source;
  return std::uint64_t{source()} << 32 | source();
}

}  // namespace

bool Facts::is_admitted(std::int32_t number) const {
  if (unchecked != 0) return true;
  for (std::uint32_t i = 0; i < kMaxAdmitted; ++i) {
    const std::int32_t there = admitted[(number + i) % kMaxAdmitted];
    if (there == 0 || there == number) return there == number;
  }
  return false;
}

bool Facts::admit(std::int32_t number) {
  for (std::uint32_t i = 0; i < kMaxAdmitted; ++i) {
    std::int32_t there = 0;
    if (admitted[(number + i) % kMaxAdmitted].compare_exchange_strong(there, number) || there == number)
      return true;
  }
  return false;
}

void Facts::add_importer(std::int32_t pid) {
  for (auto& place : importers)
    if (std::int32_t none = 0; place.compare_exchange_strong(none, pid)) return;
}

void Facts::remove_importer(std::int32_t pid) {
  for (auto& place : importers)
    if (std::int32_t mine = pid; place.compare_exchange_strong(mine, 0)) return;
}

bool Facts::has_importers() const {
  for (const auto& place : importers)
    if (place != 0 && ::kill(place, 0) == 0) return true;
  return false;
}

bool Memory::map() {
  void* at = ::mmap(nullptr, whole_pages(size) + kFactsBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return false;
  bytes = static_cast<std::byte*>(at);
  facts = reinterpret_cast<Facts*>(bytes + whole_pages(size));
  return true;
}

std::shared_ptr<Memory> Memory::create(int device, std::size_t size) {
  std::shared_ptr<Memory> memory(new Memory);
  memory->fd = ::memfd_create("simulated-npu", MFD_CLOEXEC);
  memory->size = size;
  memory->device = device;
  if (memory->fd < 0 || ::ftruncate(memory->fd, static_cast<off_t>(whole_pages(size) + kFactsBytes)) != 0 ||
      !memory->map())
    return nullptr;
  std::memcpy(memory->facts->magic, kMagic, sizeof kMagic);
  memory->facts->id = random_id();
  memory->facts->size = size;
  memory->facts->device = device;
  return memory;
}

std::uint64_t Memory::number() const {
  return static_cast<std::uint64_t>(::getpid()) << 40 | static_cast<std::uint64_t>(fd & 0xffffff) << 16 |
         (facts->id & 0xffff);
}

std::shared_ptr<Memory> Memory::import(std::uint64_t number) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", static_cast<int>(number >> 40),
                static_cast<int>(number >> 16 & 0xffffff));
  std::shared_ptr<Memory> memory(new Memory);
  memory->fd = ::open(path, O_RDWR | O_CLOEXEC);
  struct stat info {};
  if (memory->fd < 0 || ::fstat(memory->fd, &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size < static_cast<off_t>(kPage + kFactsBytes))
    return nullptr;
  memory->size = static_cast<std::size_t>(info.st_size) - kFactsBytes;  // whole pages
  if (!memory->map() || std::memcmp(memory->facts->magic, kMagic, sizeof kMagic) != 0 ||
      (memory->facts->id & 0xffff) != (number & 0xffff))
    return nullptr;
  memory->device = memory->facts->device;
  memory->imported = true;
  return memory;
}

Memory::~Memory() {
  if (bytes) ::munmap(bytes, whole_pages(size) + kFactsBytes);
  if (fd >= 0) ::close(fd);
  if (counted) state().used.at(static_cast<std::size_t>(device)) -= size;
}

Range* State::find(std::uintptr_t at) {
  auto after = ranges.upper_bound(at);
  if (after == ranges.begin()) return nullptr;
  Range& range = std::prev(after)->second;
  return at - range.base < range.size ? &range : nullptr;
}

std::shared_ptr<Memory> allocate(int device, std::size_t size) {
  auto& used = state().used.at(static_cast<std::size_t>(device));
  if (size > settings().memory || used > settings().memory - size) return nullptr;
  auto memory = Memory::create(device, size);
  if (!memory) return nullptr;
  memory->counted = true;
  used += size;
  return memory;
}

std::uintptr_t reserve_addresses(std::size_t size) {
  void* at =
      ::mmap(nullptr, size + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return 0;
  const std::uintptr_t begin = address(at);
  const std::uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > begin) ::munmap(at, aligned - begin);
  if (const std::size_t rest = begin + kHugePage - aligned; rest > 0)
    ::munmap(reinterpret_cast<void*>(aligned + size), rest);
  return aligned;
}

void free_addresses(std::uintptr_t at, std::size_t size) { ::munmap(reinterpret_cast<void*>(at), size); }

Range& add_range(std::uintptr_t base, std::size_t size, RangeKind kind, std::shared_ptr<Memory> memory,
                 int device) {
  Range& range = state().ranges[base];
  range = {};
  range.base = base;
  range.size = size;
  range.kind = kind;
  range.memory = std::move(memory);
  range.device = device;
  return range;
}

}  // namespace sim

SIM_CALL aclrtGetMemInfo(int, std::size_t* free, std::size_t* total) {
  SIM_ENTER(aclrtGetMemInfo);
  if (!free || !total) return ACL_ERROR_INVALID_PARAM;
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  *total = settings().memory;
  *free = *total - state().used.at(static_cast<std::size_t>(current()->device));
  return ACL_SUCCESS;
}

SIM_CALL aclrtMalloc(void** pointer, std::size_t size, int policy) {
  SIM_ENTER(aclrtMalloc);
  if (!pointer || size == 0 || policy < 0) return ACL_ERROR_INVALID_PARAM;
  Context* context = current();
  if (!context) return ACL_ERROR_RT_CONTEXT_NULL;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  size = policy == ACL_MEM_MALLOC_HUGE_ONLY ? (size + kHugePage - 1) / kHugePage * kHugePage
                                            : whole_pages(size);
  auto memory = allocate(context->device, size);
  if (!memory) return ACL_ERROR_RT_MEMORY_ALLOCATION;
  const std::uintptr_t base = reserve_addresses(size);
  if (base == 0) return ACL_ERROR_RT_MEMORY_ALLOCATION;
  add_range(base, size, RangeKind::allocation, std::move(memory), context->device);
  *pointer = reinterpret_cast<void*>(base);
  return ACL_SUCCESS;
}

/// At once, without waiting for streams, whose work on it then fails; not while it is exported.
SIM_CALL aclrtFree(void* pointer) {
  SIM_ENTER(aclrtFree);
  if (!pointer) return ACL_ERROR_INVALID_PARAM;
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.ranges.find(address(pointer));
  if (at == all.ranges.end() || at->second.kind != RangeKind::allocation) return ACL_ERROR_RT_PARAM_INVALID;
  if (!at->second.key.empty()) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  at->second.memory->freed = true;
  std::memset(at->second.memory->bytes, 0xdb, at->second.size);
  free_addresses(at->first, at->second.size);
  all.ranges.erase(at);
  return ACL_SUCCESS;
}

SIM_CALL aclrtMallocHost(void** pointer, std::size_t size) {
  SIM_ENTER(aclrtMallocHost);
  if (!pointer || size == 0) return ACL_ERROR_INVALID_PARAM;
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  void* at = ::mmap(nullptr, whole_pages(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return ACL_ERROR_RT_MEMORY_ALLOCATION;
  const std::lock_guard lock(state().mutex);
  add_range(address(at), size, RangeKind::host, nullptr, current()->device);
  *pointer = at;
  return ACL_SUCCESS;
}

SIM_CALL aclrtFreeHost(void* pointer) {
  SIM_ENTER(aclrtFreeHost);
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.ranges.find(address(pointer));
  if (at == all.ranges.end() || at->second.kind != RangeKind::host || at->second.registered)
    return ACL_ERROR_RT_PARAM_INVALID;
  ::munmap(pointer, whole_pages(at->second.size));
  all.ranges.erase(at);
  return ACL_SUCCESS;
}

/// It was not tried which of these a real device refuses.
SIM_CALL aclrtHostRegister(void* pointer, std::uint64_t size, int type, void** device) {
  SIM_ENTER(aclrtHostRegister);
  if (!pointer || size == 0 || !device ||
      (type != ACL_HOST_REGISTER_MAPPED && type != ACL_HOST_REGISTER_READONLY))
    return ACL_ERROR_INVALID_PARAM;
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  const std::lock_guard lock(state().mutex);
  if (state().find(address(pointer)) || state().find(address(pointer) + size - 1))
    return ACL_ERROR_RT_PARAM_INVALID;
  add_range(address(pointer), size, RangeKind::host, nullptr, current()->device).registered = true;
  *device = pointer;
  return ACL_SUCCESS;
}

SIM_CALL aclrtHostUnregister(void* pointer) {
  SIM_ENTER(aclrtHostUnregister);
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.ranges.find(address(pointer));
  if (at == all.ranges.end() || !at->second.registered) return ACL_ERROR_RT_PARAM_INVALID;
  all.ranges.erase(at);
  return ACL_SUCCESS;
}

SIM_CALL aclrtPointerGetAttributes(const void* pointer, aclrtPtrAttributes* attributes) {
  SIM_ENTER(aclrtPointerGetAttributes);
  if (!pointer || !attributes) return ACL_ERROR_INVALID_PARAM;
  const std::lock_guard lock(state().mutex);
  const Range* range = state().find(address(pointer));
  *attributes = {};
  attributes->location.type = !range                           ? ACL_MEM_LOCATION_TYPE_UNREGISTERED
                              : range->kind == RangeKind::host ? ACL_MEM_LOCATION_TYPE_HOST
                                                               : ACL_MEM_LOCATION_TYPE_DEVICE;
  for (std::size_t i = 0; range && i < settings().visible.size(); ++i)
    if (settings().visible[i] == range->device) attributes->location.id = static_cast<std::uint32_t>(i);
  attributes->pageSize = static_cast<std::uint32_t>(kHugePage);
  return ACL_SUCCESS;
}

/// Belongs to CANN 9.
SIM_CALL aclrtMemGetAddressRange(void* pointer, void** base, std::size_t* size) {
  SIM_ENTER(aclrtMemGetAddressRange);
  const std::lock_guard lock(state().mutex);
  const Range* range = state().find(address(pointer));
  if (!range) return ACL_ERROR_RT_PARAM_INVALID;
  if (base) *base = reinterpret_cast<void*>(range->base);
  if (size) *size = range->size;
  return ACL_SUCCESS;
}
