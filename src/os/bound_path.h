// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace onecopy {

/// Owns a socket's name in the file system and unlinks it; a forked child that inherited the object
/// leaves the name alone.
///
/// Thread safety: as a value. Nothing throws but the constructor (std::bad_alloc).
class BoundPath {
 public:
  BoundPath() noexcept = default;
  explicit BoundPath(std::string path);
  BoundPath(BoundPath&& other) noexcept;
  BoundPath& operator=(BoundPath&& other) noexcept;
  ~BoundPath() { reset(); }

  const std::string& str() const noexcept { return path_; }
  void reset() noexcept;
  /// Leaves the name where it is.
  void forget() noexcept { path_.clear(); }

 private:
  std::string path_;
  int creator_ = 0;
};

}  // namespace onecopy
