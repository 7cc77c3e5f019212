// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "onecopy/os/fd.h"

namespace onecopy::cuda {

/// Descriptors of device memory that outlive the call that needed them; a process keeps kMost in all, whatever
/// they are for. Each keeps its memory, too: a forked child, which can do nothing with it, has /dev/null in the
/// place of each, so that the memory is free when its processes have let go of it.
///
/// Thread safety: different objects may be used concurrently.
class KeptDescriptors {
 public:
  static constexpr std::size_t kMost = 12;

  KeptDescriptors() = default;
  KeptDescriptors(const KeptDescriptors&) = delete;
  KeptDescriptors& operator=(const KeptDescriptors&) = delete;
  ~KeptDescriptors() { close(); }

  /// All of them or, where there is no room for all, none. REQUIRES: nothing is kept.
  void keep(std::vector<Fd> fds);
  void close() noexcept;
  const std::vector<Fd>& fds() const noexcept { return fds_; }

 private:
  std::vector<Fd> fds_;
};

}  // namespace onecopy::cuda
