// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "device/backend.h"
#include "driver.h"
#include "os/mapping.h"
#include "os/mutex.h"

namespace onecopy::cuda {

/// Copies on one card by way of pinned memory of the host: only its engines for the link have work. The driver gives a
/// copy on the card, and one to it of less than Backend::kAsideRoom bytes, to the processors' queue; if another process
/// shares the card, that waits until the card changes to this process: 0.14 ms each way, where a detour takes 0.01
/// (seen on an H100).
///
/// Thread safety: all members may be called concurrently. Invariant: a detour belongs to one stream, which reads its
/// buffer before it writes the next copy there; the driver never gives a stream's number to another.
class Detours {
 public:
  /// Longer copies take longer by the link than the change does.
  static constexpr std::size_t kMax = std::size_t{1} << 20;
  /// Each keeps kMax bytes pinned until the process ends.
  static constexpr std::size_t kMaxStreams = 16;

  static Detours& get();

  /// Enqueues the copy. False, with nothing done, where there is none: a long copy, a captured stream, more streams than
  /// kMaxStreams, a driver before CUDA 12, no memory to pin.
  bool copy(const Transfer& transfer, Stream stream);

 private:
  struct Detour {
    Mutex order;  ///< held while the two copies are enqueued, which may have to wait for room in the stream
    Mapping buffer;
  };
  Detour* find(int ordinal, Stream stream);
  static std::unique_ptr<Detour> make(int ordinal);

  Mutex mutex_;
  std::map<std::pair<int, unsigned long long>, std::unique_ptr<Detour>> detours_ GUARDED_BY(mutex_);
};

}  // namespace onecopy::cuda
