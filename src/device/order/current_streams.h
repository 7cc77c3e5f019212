// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "device/backend.h"

namespace onecopy {

/// A stream and its device.
struct DeviceStream {
  Device device;
  Stream stream;
};

/// A scope that names the streams in which this thread's puts and gets of values are ordered. Frameworks have a current
/// stream on each device, and a call names at most one stream. For a put these are the streams that have work; idle
/// streams are left out.
///
/// Thread safety: each object belongs to the thread that created it; scopes nest.
class CurrentStreams {
 public:
  /// Opens the scope. REQUIRES: the entries live as long as the scope.
  explicit CurrentStreams(std::span<const DeviceStream> streams) noexcept
      : streams_(streams), outer_(innermost_) {
    innermost_ = this;
  }
  CurrentStreams& operator=(CurrentStreams&&) = delete;
  ~CurrentStreams() { innermost_ = outer_; }

  /// Returns the innermost scope, or null if the thread is in none.
  static const CurrentStreams* of_this_thread() noexcept { return innermost_; }
  std::span<const DeviceStream> streams() const noexcept { return streams_; }

 private:
  inline static thread_local const CurrentStreams* innermost_ = nullptr;

  const std::span<const DeviceStream> streams_;
  const CurrentStreams* const outer_;
};

}  // namespace onecopy
