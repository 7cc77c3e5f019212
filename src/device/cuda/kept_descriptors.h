// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "os/fd.h"

namespace onecopy::cuda {

/// How many descriptors a process still keeps for a purpose.
using Room = std::atomic<std::size_t>;

/// Those of segments that were opened, for passing the memory on when its owner has ended.
inline constexpr std::size_t kMostReceived = 12;
inline Room room_for_received{kMostReceived};
/// Those of segments that others have opened, see physical_chunk.cpp.
inline constexpr std::size_t kMostExports = 8;
inline Room room_for_exports{kMostExports};

/// Descriptors of device memory that outlive the call that needed them. Each keeps its memory, too: a forked
/// child, which can do nothing with it, has /dev/null in the place of each, so that the memory is free when its
/// processes have let go of it. (Not where it may open nothing, nor what another thread is about to keep.)
///
/// Thread safety: different objects may be used concurrently.
class KeptDescriptors {
 public:
  explicit KeptDescriptors(Room& room) noexcept : room_(room) {}
  KeptDescriptors(const KeptDescriptors&) = delete;
  KeptDescriptors& operator=(const KeptDescriptors&) = delete;
  ~KeptDescriptors() { close(); }

  /// All of them or, where there is no room for all, none. REQUIRES: nothing is kept.
  void keep(std::vector<Fd> fds);
  void close() noexcept;
  const std::vector<Fd>& fds() const noexcept { return fds_; }

 private:
  Room& room_;
  std::vector<Fd> fds_;
};

}  // namespace onecopy::cuda
