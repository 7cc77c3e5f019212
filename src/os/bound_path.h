// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace onecopy {

/// An owner of a socket's name in the file system. The destructor unlinks the name, but not in a forked child that
/// inherited the object.
///
/// Thread safety: as a value. Only the constructor throws (std::bad_alloc).
class BoundPath {
 public:
  BoundPath() noexcept = default;
  explicit BoundPath(std::string path);
  BoundPath(BoundPath&& other) noexcept;
  BoundPath& operator=(BoundPath&& other) noexcept;
  ~BoundPath() { reset(); }

  const std::string& str() const noexcept { return path_; }
  void reset() noexcept;
  /// Gives up the name without unlinking it.
  void forget() noexcept { path_.clear(); }

 private:
  std::string path_;
  int creator_ = 0;
};

}  // namespace onecopy
