// SPDX-License-Identifier: Apache-2.0
#include "recent_exports.h"

#include <utility>
#include <vector>

#include "physical_chunk.h"

namespace onecopy::cuda {

namespace {

/// Exports the chunk. The driver counts every handle that it returns; the descriptor keeps the memory alive by itself.
Fd export_chunk(const Driver& driver, CUdeviceptr at) {
  CUmemGenericAllocationHandle handle = 0;
  driver.cuMemRetainAllocationHandle.must(&handle, reinterpret_cast<void*>(at));
  Fd fd;
  const CUresult result = try_export(driver, handle, fd);
  driver.cuMemRelease(handle);
  check(result, "cuMemExportToShareableHandle");
  return fd;
}

}  // namespace

RecentExports& RecentExports::instance() {
  static RecentExports* const exports = new RecentExports;
  return *exports;
}

/// Returns a descriptor. The lock is not held while the driver works.
Fd RecentExports::get(const Driver& driver, CUdeviceptr at, unsigned long long buffer_id) {
  if (Fd known = find(at, buffer_id)) return known;
  Fd made = export_chunk(driver, at);
  keep(at, buffer_id, made.duplicate());
  return made;
}

Fd RecentExports::find(CUdeviceptr at, unsigned long long buffer_id) {
  const LockGuard lock(mutex_);
  for (const Entry& entry : entries_)
    if (entry.at == at && entry.buffer_id == buffer_id) return entry.fd.fds().front().duplicate();
  return {};
}

void RecentExports::keep(CUdeviceptr at, unsigned long long buffer_id, Fd fd) {
  std::vector<Fd> one;
  one.push_back(std::move(fd));
  const LockGuard lock(mutex_);
  entries_.remove_if([&](const Entry& entry) { return entry.at == at; });
  if (entries_.size() == kMax) entries_.pop_back();
  entries_.emplace_front(at, buffer_id).fd.keep(std::move(one));
  if (entries_.front().fd.fds().empty()) entries_.pop_front();  // other users hold the room
}

void RecentExports::forget(CUdeviceptr begin, std::size_t bytes) noexcept {
  const LockGuard lock(mutex_);
  entries_.remove_if([&](const Entry& entry) { return entry.at >= begin && entry.at - begin < bytes; });
}

}  // namespace onecopy::cuda
