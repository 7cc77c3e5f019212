// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "driver_api.h"
#include "onecopy/core/tensor_view.h"
#include "os/mutex.h"

namespace onecopy::cuda {

/// The memory that all reservations of this process map, by address. Only devices that were named for a mapping can
/// access memory of cuMemMap, so a caller that knows only an address, such as a copy, has to find the mapping.
///
/// Thread safety: all members may be called concurrently. The lock is held during the driver's calls, so that no
/// mapping ends while a device is added to it, and a weaker access does not replace a stronger one. Invariant: mappings
/// never overlap.
class Mappings {
 public:
  static Mappings& get();

  /// Adds memory of the device `owner`; no device may use it yet.
  void add(CUdeviceptr base, std::size_t bytes, int owner);
  void remove(CUdeviceptr base) noexcept;
  /// Lets `ordinal` use whole mappings. REQUIRES: it has a path to the memory, and a context is current.
  void allow(CUdeviceptr base, std::size_t bytes, int ordinal, Access access);
  /// Returns the devices that may use the mapping that begins at `base`.
  std::vector<int> users(CUdeviceptr base);

  enum class Reach {
    unknown,  ///< a part is not mapped here
    none,     ///< the device has no path to it
    direct,   ///< the device may read it
  };
  /// Lets `ordinal` read [at, at + bytes), once for each mapping. REQUIRES: a context is current.
  Reach let_read(int ordinal, CUdeviceptr at, std::size_t bytes);

 private:
  struct Mapping {
    std::size_t bytes;
    int owner;
    Access access = Access::read_only;  ///< of the first device that was allowed
    std::set<int> allowed{};
  };
  using ByAddress = std::map<CUdeviceptr, Mapping>;

  ByAddress::iterator find(CUdeviceptr at) REQUIRES(mutex_);
  static bool let_read(int ordinal, CUdeviceptr base, Mapping& mapping);

  Mutex mutex_;
  ByAddress mappings_ GUARDED_BY(mutex_);
};

}  // namespace onecopy::cuda
