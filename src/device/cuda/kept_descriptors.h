// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "os/fd.h"
#include "os/unshared_descriptor.h"

namespace onecopy::cuda {

/// How many descriptors a process still keeps for a purpose.
using Room = std::atomic<std::size_t>;

/// Descriptors of segments that were opened, for passing the memory on when its owner has ended.
inline constexpr std::size_t kMaxReceived = 12;
inline Room room_for_received{kMaxReceived};
/// Descriptors of segments that others have opened, see physical_chunk.cpp.
inline constexpr std::size_t kMaxExports = 8;
inline Room room_for_exports{kMaxExports};

/// Descriptors of device memory that outlive the call that needed them. Each keeps its memory, too. A forked child
/// can do nothing with one, and gets /dev/null in its place (UnsharedDescriptor). So the memory is free when its
/// processes have let go of it. (Not if the child may open nothing.)
///
/// Thread safety: different objects may be used concurrently.
class KeptDescriptors {
 public:
  explicit KeptDescriptors(Room& room) noexcept : room_(room) {}
  KeptDescriptors(const KeptDescriptors&) = delete;
  KeptDescriptors& operator=(const KeptDescriptors&) = delete;
  ~KeptDescriptors() { close(); }

  /// Keeps all of them or, if there is no room for all, none. REQUIRES: nothing is kept.
  void keep(std::vector<Fd> fds);
  void close() noexcept;
  const std::vector<Fd>& fds() const noexcept { return fds_; }

 private:
  Room& room_;
  std::vector<Fd> fds_;
  std::vector<UnsharedDescriptor> unshared_;  ///< those, for as long as they are open
};

}  // namespace onecopy::cuda
