// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <iterator>
#include <map>

#include "os/mutex.h"
#include "store/client/mapped_memory.h"

namespace onecopy::store {

/// The ranges of this process that are memory of the store. Thread safety: all members may be called concurrently. Never
/// destroyed: tensors live until the end.
class StoredRanges {
 public:
  static StoredRanges& all() {
    static StoredRanges* const ranges = new StoredRanges;
    return *ranges;
  }
  void add(MappedMemory& memory) {
    const LockGuard lock(mutex_);
    ranges_[memory.data()] = &memory;
    count_.store(ranges_.size(), std::memory_order_relaxed);
  }
  void remove(const MappedMemory& memory) noexcept {
    const LockGuard lock(mutex_);
    ranges_.erase(memory.data());
    count_.store(ranges_.size(), std::memory_order_relaxed);
  }
  bool has(const void* at) noexcept {
    if (count_.load(std::memory_order_relaxed) == 0) return false;
    const LockGuard lock(mutex_);
    return find_locked(at) != nullptr;
  }
  BlockRef find(const void* at) noexcept {
    if (count_.load(std::memory_order_relaxed) == 0) return {};
    const LockGuard lock(mutex_);
    MappedMemory* const memory = find_locked(at);
    return memory && memory->try_reference() ? BlockRef(memory, 0) : BlockRef();
  }

 private:
  MappedMemory* find_locked(const void* at) REQUIRES(mutex_) {
    const auto after = ranges_.upper_bound(static_cast<const std::byte*>(at));
    if (after == ranges_.begin()) return nullptr;
    MappedMemory* const before = std::prev(after)->second;
    return at < before->data() + before->size() ? before : nullptr;
  }

  std::atomic<std::size_t> count_{0};
  Mutex mutex_;
  std::map<const std::byte*, MappedMemory*> ranges_ GUARDED_BY(mutex_);  ///< by their first address
};

}  // namespace onecopy::store
