// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace onecopy {

/// A point after all work that a process had given to the devices of one kind when it was made, see
/// Backend::mark_work(). Thread safety: external.
class WorkPoint {
 public:
  enum class Progress : std::uint8_t {
    no,
    yes,
    never,  ///< a device has failed: its work may still go on
  };

  virtual ~WorkPoint() = default;
  /// Waits for nothing.
  virtual Progress look() noexcept = 0;
};

}  // namespace onecopy
