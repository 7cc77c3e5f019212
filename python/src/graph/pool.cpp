// SPDX-License-Identifier: Apache-2.0 Serves captures of torch's CUDA allocator. torch finds the two functions at the
// end of the file by name, and calls them on any thread, with or without the GIL; see onecopy/graphs/_pool.py.
#include "graph/pool.h"

#include <sys/types.h>

#include <exception>
#include <iterator>
#include <utility>

#include "core/throw_error.h"
#include "os/log.h"

namespace onecopy::python {

namespace {

constexpr std::size_t kUnit = std::size_t{2} << 20;  // of torch's segments

constexpr DLDataType kByte{1, 8, 1};

/// Bytes of a pool, as DLPack has them.
struct PoolBytes {
  DLManagedTensorVersioned managed{};
  std::int64_t size = 0;
  std::int64_t stride = 1;
  std::shared_ptr<GraphPool> pool;

  static void destroy(DLManagedTensorVersioned* self) { delete static_cast<PoolBytes*>(self->manager_ctx); }
};

/// The pools from which torch allocates and to which it frees. Never destroyed, since torch frees memory until the end.
struct Pools {
  static Pools& instance() {
    static Pools* const pools = new Pools;
    return *pools;
  }

  Mutex mutex{};
  std::map<int, GraphPool*> open GUARDED_BY(mutex){};                ///< by device
  std::map<std::uintptr_t, GraphPool*> by_base GUARDED_BY(mutex){};  ///< all
};

}  // namespace

std::shared_ptr<GraphPool> GraphPool::make(graph::Arena& arena, std::size_t most) {
  std::shared_ptr<GraphPool> pool(new GraphPool(arena.open_growing(most), arena.device()),
                                  [](GraphPool* gone) {
                                    gone->close();
                                    {
                                      Pools& pools = Pools::instance();
                                      const LockGuard lock(pools.mutex);
                                      pools.by_base.erase(gone->base());
                                    }
                                    delete gone;
                                  });
  Pools& pools = Pools::instance();
  const LockGuard lock(pools.mutex);
  pools.by_base.emplace(pool->base(), pool.get());
  return pool;
}

void GraphPool::open() {
  Pools& pools = Pools::instance();
  const LockGuard lock(pools.mutex);
  if (!pools.open.emplace(device_.index, this).second)
    throw_error(ErrorCode::invalid_argument,
                "another graph is being captured on {}; captures of one device come one after the other",
                device_.str());
}

void GraphPool::close() noexcept {
  Pools& pools = Pools::instance();
  const LockGuard lock(pools.mutex);
  const auto found = pools.open.find(device_.index);
  if (found != pools.open.end() && found->second == this) pools.open.erase(found);
}

std::size_t GraphPool::used() const {
  const LockGuard lock(mutex_);
  return used_;
}

std::string GraphPool::refusal() const {
  const LockGuard lock(mutex_);
  return refusal_;
}

DLManagedTensorVersioned* GraphPool::bytes_at(std::uintptr_t address, std::size_t bytes) {
  auto* const view = new PoolBytes;
  view->size = static_cast<std::int64_t>(bytes);
  view->pool = shared_from_this();
  view->managed = {
      {1, 0},
      view,
      &PoolBytes::destroy,
      0,
      {reinterpret_cast<void*>(address), to_dl(device_), 1, kByte, &view->size, &view->stride, 0}};
  return &view->managed;
}

void* GraphPool::add(std::size_t bytes) {
  const LockGuard lock(mutex_);
  const std::size_t whole = (bytes + kUnit - 1) / kUnit * kUnit;
  try {
    window_.grow(used_ + whole);
  } catch (const Error& error) {
    refusal_ = error.what();
    throw;
  }
  const std::uintptr_t segment = base() + used_;
  segments_.insert(segment);
  if (!self_) self_ = shared_from_this();
  used_ += whole;
  return reinterpret_cast<void*>(segment);
}

/// Removes a segment. The last one releases the pool after the lock was released.
bool GraphPool::remove(std::uintptr_t segment) {
  std::shared_ptr<GraphPool> last;
  const LockGuard lock(mutex_);
  const auto found = segments_.find(segment);
  if (found == segments_.end()) return false;
  segments_.erase(found);
  if (segments_.empty()) last = std::move(self_);
  return true;
}

void* GraphPool::allocate(std::size_t bytes, int ordinal) noexcept {
  try {
    std::shared_ptr<GraphPool> pool;
    {
      Pools& pools = Pools::instance();
      const LockGuard lock(pools.mutex);
      const auto found = pools.open.find(ordinal);
      if (found != pools.open.end()) pool = found->second->weak_from_this().lock();
    }
    if (pool) return pool->add(bytes);
    log_warning("torch requested {} bytes for a capture on cuda:{}, but no capture is active", bytes,
                ordinal);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::out_of_memory)  // torch reports that itself
      log_warning("no memory for a capture on cuda:{}: {}", ordinal, error.what());
  } catch (const std::exception& error) {
    log_warning("no memory for a capture on cuda:{}: {}", ordinal, error.what());
  }
  return nullptr;
}

void GraphPool::free(void* segment) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(segment);
  std::shared_ptr<GraphPool> pool;
  Pools& pools = Pools::instance();
  {
    const LockGuard lock(pools.mutex);
    auto next = pools.by_base.upper_bound(at);
    if (next != pools.by_base.begin()) pool = std::prev(next)->second->weak_from_this().lock();
  }
  if (!pool || !pool->remove(at))
    log_warning("torch freed {}, which does not belong to a capture", segment);
}

}  // namespace onecopy::python

extern "C" {

[[gnu::visibility("default")]] void* onecopy_graph_allocate(ssize_t size, int device, void*) noexcept {
  return onecopy::python::GraphPool::allocate(static_cast<std::size_t>(size), device);
}

[[gnu::visibility("default")]] void onecopy_graph_free(void* begin, ssize_t, int, void*) noexcept {
  onecopy::python::GraphPool::free(begin);
}
}
