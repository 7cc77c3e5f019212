// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "os/fd.h"
#include "os/unshared_descriptor.h"

namespace onecopy::cuda {

/// The number of descriptors that a process may still keep for one purpose.
using Room = std::atomic<std::size_t>;

/// The max number of descriptors of opened segments, kept to pass the memory on after its owner has ended.
inline constexpr std::size_t kMaxReceived = 12;
inline Room room_for_received{kMaxReceived};
/// The max number of descriptors of segments that other processes have opened, see physical_chunk.cpp.
inline constexpr std::size_t kMaxExports = 8;
inline Room room_for_exports{kMaxExports};

/// The descriptors of device memory that outlive the call that needed them. Each also keeps its memory alive. A forked
/// child cannot use one, and gets /dev/null in its place (UnsharedDescriptor), unless the child cannot open any file.
/// The memory is therefore free once its processes have released it.
///
/// Thread safety: different objects may be used concurrently.
class KeptDescriptors {
 public:
  explicit KeptDescriptors(Room& room) noexcept : room_(room) {}
  KeptDescriptors& operator=(KeptDescriptors&&) = delete;
  ~KeptDescriptors() { close(); }

  /// Keeps all descriptors or, if there is no room for all, none. REQUIRES: nothing is kept.
  void keep(std::vector<Fd> fds);
  void close() noexcept;
  const std::vector<Fd>& fds() const noexcept { return fds_; }

 private:
  Room& room_;
  std::vector<Fd> fds_;
  std::vector<UnsharedDescriptor> unshared_;  ///< the entries of fds_, for as long as they are open
};

}  // namespace onecopy::cuda
