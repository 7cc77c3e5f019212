// SPDX-License-Identifier: Apache-2.0
// Memory between processes by key. A key names its exporter's descriptor, so it dies with it; with
// ONECOPY_SIM_ASCEND_KEYS its place in the driver's table does not.
#include <fcntl.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "state.h"

using namespace sim;

namespace {

std::string path_of(const std::string& key) { return settings().key_directory + "/" + key; }

/// False when the table of keys is full.
bool note_key(const std::string& key) {
  if (settings().key_directory.empty()) return true;
  std::error_code ignored;
  int count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(settings().key_directory, ignored))
    ++count;
  if (count >= settings().max_keys) return false;
  const int fd = ::open(path_of(key).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

void forget_key(const std::string& key) {
  if (!settings().key_directory.empty()) ::unlink(path_of(key).c_str());
}

/// The number that a key stands for; 0 when it is none.
std::uint64_t number_in(const char* key) {
  std::uint64_t number = 0;
  return key && std::sscanf(key, "simulated-key-%16" SCNx64, &number) == 1 ? number : 0;
}

Range* find_by_key(const char* key, RangeKind kind) {
  for (auto& [base, range] : state().ranges)
    if (range.kind == kind && range.key == key) return &range;
  return nullptr;
}

}  // namespace

SIM_CALL aclrtIpcMemGetExportKey(void* pointer, std::size_t size, char* key, std::size_t length,
                                 std::uint64_t flags) {
  SIM_ENTER(aclrtIpcMemGetExportKey);
  if (!pointer || !key || length < kKeyBytes || (flags & ~std::uint64_t{1}) != 0)
    return ACL_ERROR_INVALID_PARAM;
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.ranges.find(address(pointer));  // the base of an allocation, and nothing else
  if (at == all.ranges.end() || at->second.kind != RangeKind::allocation)
    return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  Range& range = at->second;
  if (size % kPage != 0) return ACL_ERROR_RT_ADDR_UNALIGNED;
  if (size > range.size || !range.key.empty()) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  char text[kKeyBytes];
  std::snprintf(text, sizeof text, "simulated-key-%016" PRIx64 "----------------------------------",
                range.memory->number());
  if (!note_key(text)) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  range.key = text;
  if ((flags & ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION) != 0) range.memory->facts->unchecked = 1;
  std::memcpy(key, text, sizeof text);
  return ACL_SUCCESS;
}

/// Any holder may call it, except for keys without a whitelist.
SIM_CALL aclrtIpcMemSetImportPid(const char* key, std::int32_t* numbers, std::size_t count) {
  SIM_ENTER(aclrtIpcMemSetImportPid);
  if (!key || !numbers || count == 0) return ACL_ERROR_INVALID_PARAM;
  const std::lock_guard lock(state().mutex);
  const Range* range = find_by_key(key, RangeKind::allocation);
  if (!range) range = find_by_key(key, RangeKind::key);
  if (!range || range->memory->facts->unchecked != 0) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  for (std::size_t i = 0; i < count; ++i)
    if (!range->memory->facts->admit(numbers[i])) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  return ACL_SUCCESS;
}

SIM_CALL aclrtIpcMemImportByKey(void** pointer, const char* key, std::uint64_t flags) {
  SIM_ENTER(aclrtIpcMemImportByKey);
  if (!pointer || !key || (flags & ~std::uint64_t{1}) != 0) return ACL_ERROR_INVALID_PARAM;
  Context* context = current();
  if (!context) return ACL_ERROR_RT_CONTEXT_NULL;
  auto memory = Memory::import(number_in(key));
  if (!memory || !memory->facts->is_admitted(own_number())) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (memory->device != context->device) {
    if (!settings().can_access(context->device, memory->device)) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
    if ((flags & ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS) != 0)
      all.peers.insert({context->device, memory->device});
    if (!reaches(context->device, memory->device)) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  }
  const std::size_t size = memory->size;
  const std::uintptr_t base = reserve_addresses(size);
  if (base == 0) return ACL_ERROR_RT_MEMORY_ALLOCATION;
  memory->facts->add_importer(::getpid());
  add_range(base, size, RangeKind::key, std::move(memory), context->device).key = key;
  all.imports[key].push_back(base);
  *pointer = reinterpret_cast<void*>(base);
  return ACL_SUCCESS;
}

/// The first import of this process that is left, and not a chosen one; or else the export, once no process has it
/// open.
SIM_CALL aclrtIpcMemClose(const char* key) {
  SIM_ENTER(aclrtIpcMemClose);
  if (!key) return ACL_ERROR_INVALID_PARAM;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (auto& opened = all.imports[key]; !opened.empty()) {
    const auto at = all.ranges.find(opened.front());
    opened.pop_front();
    at->second.memory->facts->remove_importer(::getpid());
    free_addresses(at->first, at->second.size);
    all.ranges.erase(at);
    return ACL_SUCCESS;
  }
  Range* exported = find_by_key(key, RangeKind::allocation);
  if (!exported || exported->memory->facts->has_importers()) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  exported->key.clear();
  forget_key(key);
  return ACL_SUCCESS;
}
