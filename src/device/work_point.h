// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace onecopy {

/// A point after all work that a process had given to the devices of one type when the point was created. See
/// Backend::mark_work(). Thread safety: external.
class WorkPoint {
 public:
  enum class Progress : std::uint8_t {
    no,
    yes,
    never,  ///< a device has failed: its work may still be running
  };

  virtual ~WorkPoint() = default;
  /// Returns whether the point has passed. Does not wait.
  virtual Progress poll() noexcept = 0;
};

}  // namespace onecopy
