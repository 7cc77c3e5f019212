// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <set>

#include "backend.h"
#include "devices.h"
#include "onecopy/core/error.h"
#include "os/mutex.h"

namespace onecopy::ascend {

namespace {

/// The beginnings of pinned ranges that devices map at other addresses. Never destroyed: unpinning may come late.
struct MoveResult {
  Mutex mutex;
  std::set<const void*> begins GUARDED_BY(mutex);
};
MoveResult& moved() {
  static MoveResult& all = *new MoveResult;
  return all;
}

}  // namespace

void AscendBackend::pin_host(int ordinal, void* at, std::size_t bytes, Access access) {
  const Driver& driver = Driver::get();
  const UseDevice use(ordinal);
  void* seen = nullptr;  // the address for kernels; copies use the host's address
  driver.aclrtHostRegister.must(
      at, bytes, access == Access::read_only ? ACL_HOST_REGISTER_READONLY : ACL_HOST_REGISTER_MAPPED,
      &seen);
  if (seen == at) return;
  const LockGuard lock(moved().mutex);
  moved().begins.insert(at);
}

void AscendBackend::unpin_host(int ordinal, void* at) noexcept {
  try {
    const UseDevice use(ordinal);
    Driver::get().aclrtHostUnregister(at);
    const LockGuard lock(moved().mutex);
    moved().begins.erase(at);
  } catch (const Error&) {
    // The device is gone, or this is a forked child, whose parent holds the pins.
  }
}

/// Throws if any range is at another address: the runtime maps all ranges that way or none.
void AscendBackend::require_in_place(int ordinal, const void*) {
  const LockGuard lock(moved().mutex);
  if (moved().begins.empty()) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("npu:{} sees pinned memory of the host at other addresses; copy it: to_device()",
                          ordinal),
              0, ErrorDomain::ascend);
}

}  // namespace onecopy::ascend
