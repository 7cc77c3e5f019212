// SPDX-License-Identifier: Apache-2.0
#include "memory/pool.h"

#include <new>

#include "pool_impl.h"

namespace onecopy {

Pool::Pool(Backend& backend, int ordinal, SegmentKind kind, std::string owner, SegmentTable& segments)
    : impl_(std::make_unique<Impl>(backend, ordinal, kind, std::move(owner), segments)) {}

Pool::~Pool() = default;

Extent Pool::allocate(std::uint64_t bytes) {
  try {
    return impl_->allocate(bytes);
  } catch (...) {
    if (on_idle) on_idle();  // memory that was reserved before a listener threw must be given back
    throw;
  }
}

void Pool::free(const Extent& extent) noexcept {
  try {
    if (impl_->free(extent) && on_idle) on_idle();
  } catch (const std::bad_alloc&) {
    // There is no memory to note the free pages, which stay unused.
  }
}

Pool::TrimResult Pool::trim(std::chrono::steady_clock::time_point now, std::uint64_t max_bytes) noexcept {
  try {
    return impl_->trim(now, max_bytes);
  } catch (const std::bad_alloc&) {
    return {0, true};
  }
}

std::uint64_t Pool::trim_all() noexcept {
  try {
    return impl_->trim_all();
  } catch (const std::bad_alloc&) {
    return 0;  // the rest stays for the next call
  }
}

void Pool::look_again() noexcept { impl_->look_again(); }
PoolStats Pool::stats() const { return impl_->stats(); }
void Pool::lock() { impl_->lock(); }
void Pool::unlock() { impl_->unlock(); }
void Pool::abandon() noexcept { impl_->abandon(); }

}  // namespace onecopy
