// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <set>

#include "driver_api.h"
#include "onecopy/core/tensor_view.h"
#include "os/mutex.h"

namespace onecopy::cuda {

/// All memory that reservations of this process show, by address. Only devices that were named for a mapping see
/// memory of cuMemMap. A caller with an address alone, such as a copy, has to find the mapping.
///
/// Thread safety: all members may be called concurrently. The lock is held for the driver's calls. So no mapping goes
/// while a device is added to it, and a lesser right replaces no greater one. Invariant: mappings never overlap.
class Mappings {
 public:
  static Mappings& get();

  /// Memory of the device `owner`; no device may use it yet.
  void add(CUdeviceptr base, std::size_t bytes, int owner);
  void remove(CUdeviceptr base) noexcept;
  /// Lets `ordinal` use whole mappings. REQUIRES: it has a path to the memory, and a context is current.
  void allow(CUdeviceptr base, std::size_t bytes, int ordinal, Access access);

  enum class Reach {
    unknown,  ///< a part was not mapped here
    none,     ///< the device has no path to it
    direct,   ///< the device may read it
  };
  /// Lets `ordinal` read [at, at + bytes), once for each mapping. REQUIRES: a context is current.
  Reach let_read(int ordinal, CUdeviceptr at, std::size_t bytes);

 private:
  struct Mapping {
    std::size_t bytes;
    int owner;
    Access access = Access::read_only;  ///< the device's access that was allowed first
    std::set<int> allowed{};
  };
  using ByAddress = std::map<CUdeviceptr, Mapping>;

  ByAddress::iterator find(CUdeviceptr at) REQUIRES(mutex_);
  static bool let_read(int ordinal, CUdeviceptr base, Mapping& mapping);

  Mutex mutex_;
  ByAddress mappings_ GUARDED_BY(mutex_);
};

}  // namespace onecopy::cuda
