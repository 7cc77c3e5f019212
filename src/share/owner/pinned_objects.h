// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "os/mutex.h"

namespace onecopy {

/// The objects of this process that handles name, each by the block that stands for it.
///
/// Thread safety: all members may be called concurrently.
/// Invariant: an entry is there exactly as long as the object's block keeps it.
class PinnedObjects {
 public:
  struct Name {
    std::uint32_t block = 0;
    std::uint64_t generation = 0;
    auto operator<=>(const Name&) const = default;  // NOLINT(modernize-use-nullptr)
  };

  /// REQUIRES: the block keeps the returned pointer, and is its only owner; this registry outlives it.
  std::shared_ptr<const void> add(Name name, std::shared_ptr<const void> object);
  /// Empty if the object is gone.
  std::shared_ptr<const void> find(Name name) const;

 private:
  struct Pin;

  mutable Mutex mutex_;
  std::map<Name, std::weak_ptr<const Pin>> pins_ GUARDED_BY(mutex_);
};

}  // namespace onecopy
