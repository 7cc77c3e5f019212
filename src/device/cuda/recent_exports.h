// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>

#include "driver.h"
#include "kept_descriptors.h"
#include "os/fd.h"
#include "os/mutex.h"

namespace onecopy::cuda {

/// A cache of descriptors of the chunks that were exported last. A tensor across two chunks is a row of its own beside
/// the rows of each chunk, which are opened before and after it. The driver takes 0.02 to 0.2 ms for a descriptor, and
/// 0.8 ms while none is open anywhere (seen on an H200). An entry ends with the last row that contains its chunk.
///
/// Thread safety: all members may be called concurrently. Never destroyed: rows may outlive static objects.
class RecentExports {
 public:
  static RecentExports& instance();

  /// Returns a descriptor of the chunk that is mapped at `at`. `buffer_id` distinguishes the chunk from earlier ones.
  /// Throws what exporting throws.
  Fd get(const Driver& driver, CUdeviceptr at, unsigned long long buffer_id);
  /// Closes descriptors of chunks in the range.
  void forget(CUdeviceptr begin, std::size_t bytes) noexcept;

 private:
  static constexpr std::size_t kMax = 4;
  struct Entry {
    Entry(CUdeviceptr address, unsigned long long id) : at(address), buffer_id(id) {}

    const CUdeviceptr at;
    const unsigned long long buffer_id;
    KeptDescriptors fd{room_for_exports};
  };

  Fd find(CUdeviceptr at, unsigned long long buffer_id);
  void keep(CUdeviceptr at, unsigned long long buffer_id, Fd fd);

  Mutex mutex_;
  std::list<Entry> entries_ GUARDED_BY(mutex_);  ///< the most recent entry first
};

}  // namespace onecopy::cuda
