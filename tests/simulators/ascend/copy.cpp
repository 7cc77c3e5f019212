// SPDX-License-Identifier: Apache-2.0
// Copies and memset. The direction that a caller names is not looked at: the addresses say it.
#include <cstring>
#include <utility>
#include <vector>

#include "stream.h"

using namespace sim;

namespace {

enum class Access { read, write };

std::vector<Use> pages_of(const Range& range, std::uintptr_t at, std::size_t bytes, Access access) {
  std::vector<Use> pages;
  if (range.kind != RangeKind::vmm) return pages;
  const std::uintptr_t first = (at - range.base) / kHugePage, end = at - range.base + bytes;
  for (std::uintptr_t page = first; page * kHugePage < end; ++page)
    pages.push_back({range.memory->number(), page, range.base, access == Access::write});
  return pages;
}

/// One end of a copy, resolved and checked.
struct Side {
  std::shared_ptr<Memory> keep;
  std::byte* at = nullptr;
  bool is_host = false;
  bool pageable = false;
  bool another_cards = false;
  std::vector<Use> pages{};  ///< of memory that may have several addresses

  bool is_gone() const { return keep && keep->freed; }
};

bool may(const Range& range, Access use, int device) {
  if (range.kind == RangeKind::host) return true;
  if (range.kind != RangeKind::vmm)
    return reaches(device, range.device) && reaches(device, range.memory->device);
  const auto flags = range.access.find(device);
  if (flags == range.access.end())
    return use == Access::read && reaches(device, range.device);  // a peer copies from another's mapping
  return use == Access::read ? flags->second != ACL_RT_MEM_ACCESS_FLAGS_NONE
                             : flags->second == ACL_RT_MEM_ACCESS_FLAGS_READWRITE;
}

aclError resolve(const void* pointer, std::size_t bytes, Access use, int device, Side& side) {
  const std::lock_guard lock(state().mutex);
  const std::uintptr_t at = address(pointer);
  const Range* range = state().find(at);
  if (!range) {
    side = {nullptr, reinterpret_cast<std::byte*>(at), true, true, false, {}};
    return ACL_SUCCESS;
  }
  if (bytes > range->base + range->size - at || !may(*range, use, device))
    return ACL_ERROR_RT_PARAM_INVALID;
  side = {range->memory,
          range->host(at),
          range->kind == RangeKind::host,
          false,
          range->memory && range->memory->device != device,
          pages_of(*range, at, bytes, use)};
  return ACL_SUCCESS;
}

/// Uses of another card's memory that the documentation does not allow.
bool is_refused(const Side& to, const Side& from, int kind, bool waits) {
  if (!to.another_cards && !from.another_cards) return false;
  if (kind == ACL_MEMCPY_DEFAULT) return true;
  if (to.is_host || from.is_host) return true;
  return waits;
}

aclError copy(void* to, std::size_t most, const void* from, std::size_t bytes, int kind, Stream* stream,
              bool waits) {
  if (kind < 0 || kind > kLastMemcpyKind) return ACL_ERROR_INVALID_PARAM;
  if (bytes == 0) return ACL_SUCCESS;
  if (!to || !from || bytes > most) return ACL_ERROR_INVALID_PARAM;
  const int device = stream->context->device;
  Side target;
  Side source;
  if (const aclError result = resolve(to, bytes, Access::write, device, target)) return result;
  if (const aclError result = resolve(from, bytes, Access::read, device, source)) return result;
  if (is_refused(target, source, kind, waits)) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  const bool pageable = target.pageable || source.pageable;
  if (pageable && stream->capture) return stream->spoil();
  std::vector<Use> pages = target.pages;
  pages.insert(pages.end(), source.pages.begin(), source.pages.end());
  const auto work = [target = std::move(target), source = std::move(source), bytes] {
    if (target.is_gone() || source.is_gone()) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
    std::memmove(target.at, source.at, bytes);
    return ACL_SUCCESS;
  };
  const aclError result = stream->submit(work, std::move(pages));
  return result == ACL_SUCCESS && (pageable || waits) ? stream->synchronize() : result;
}

aclError fill(void* to, std::size_t most, int value, std::size_t bytes, Stream* stream) {
  if (!to || bytes > most) return ACL_ERROR_INVALID_PARAM;
  Side target;
  if (const aclError result = resolve(to, bytes, Access::write, stream->context->device, target))
    return result;
  if (target.pageable) return ACL_ERROR_RT_PARAM_INVALID;
  std::vector<Use> pages = target.pages;
  const auto work = [target = std::move(target), value, bytes] {
    if (target.is_gone()) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
    std::memset(target.at, value, bytes);
    return ACL_SUCCESS;
  };
  return stream->submit(work, std::move(pages));
}

}  // namespace

SIM_CALL aclrtMemcpyAsync(void* to, std::size_t most, const void* from, std::size_t bytes, int kind,
                          aclrtStream handle) {
  SIM_ENTER(aclrtMemcpyAsync);
  Stream* stream = Stream::find(handle);
  return stream ? copy(to, most, from, bytes, kind, stream, false) : no_stream();
}

SIM_CALL aclrtMemcpy(void* to, std::size_t most, const void* from, std::size_t bytes, int kind) {
  SIM_ENTER(aclrtMemcpy);
  Stream* stream = Stream::find(nullptr);
  if (!stream) return no_stream();
  if (const aclError refused = forbid_in_capture()) return refused;
  return copy(to, most, from, bytes, kind, stream, true);
}

SIM_CALL aclrtMemsetAsync(void* to, std::size_t most, std::int32_t value, std::size_t bytes,
                          aclrtStream handle) {
  SIM_ENTER(aclrtMemsetAsync);
  Stream* stream = Stream::find(handle);
  return stream ? fill(to, most, value, bytes, stream) : no_stream();
}

SIM_CALL aclrtMemset(void* to, std::size_t most, std::int32_t value, std::size_t bytes) {
  SIM_ENTER(aclrtMemset);
  Stream* stream = Stream::find(nullptr);
  if (!stream) return no_stream();
  if (const aclError refused = forbid_in_capture()) return refused;
  const aclError result = fill(to, most, value, bytes, stream);
  return result == ACL_SUCCESS ? stream->synchronize() : result;
}
