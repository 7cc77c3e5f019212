// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "device/backend.h"

namespace onecopy {

/// A device and a stream of it.
struct DeviceStream {
  Device device;
  Stream stream;
};

/// The streams in which this thread's puts and gets of values are ordered, for a scope. Frameworks have a current
/// stream on each device, and a call names one stream at most. For a put these are the streams that have work; idle
/// ones are left out.
///
/// Thread safety: each object belongs to the thread that made it; scopes nest.
class CurrentStreams {
 public:
  /// The entries must live as long.
  explicit CurrentStreams(std::span<const DeviceStream> streams) noexcept
      : streams_(streams), outer_(innermost_) {
    innermost_ = this;
  }
  CurrentStreams(const CurrentStreams&) = delete;
  CurrentStreams& operator=(const CurrentStreams&) = delete;
  ~CurrentStreams() { innermost_ = outer_; }

  /// Null if the thread is in no scope.
  static const CurrentStreams* of_this_thread() noexcept { return innermost_; }
  std::span<const DeviceStream> streams() const noexcept { return streams_; }

 private:
  inline static thread_local const CurrentStreams* innermost_ = nullptr;

  const std::span<const DeviceStream> streams_;
  const CurrentStreams* const outer_;
};

}  // namespace onecopy
