// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace onecopy {

/// A descriptor of this process that forked children do not inherit: its number stands for /dev/null in them, so that
/// the open file ends with this process. The descriptor's owner closes it after destroying this object.
///
/// Thread safety: as a value. Move-only.
class UnsharedDescriptor {
 public:
  UnsharedDescriptor() noexcept = default;
  explicit UnsharedDescriptor(int fd);
  UnsharedDescriptor(UnsharedDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UnsharedDescriptor& operator=(UnsharedDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UnsharedDescriptor();

 private:
  int fd_ = -1;
};

}  // namespace onecopy
