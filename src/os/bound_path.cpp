// SPDX-License-Identifier: Apache-2.0
#include "os/bound_path.h"

#include <unistd.h>

#include <utility>

namespace onecopy {

BoundPath::BoundPath(std::string path) : path_(std::move(path)), creator_(::getpid()) {}

BoundPath::BoundPath(BoundPath&& other) noexcept
    : path_(std::exchange(other.path_, {})), creator_(other.creator_) {}

BoundPath& BoundPath::operator=(BoundPath&& other) noexcept {
  if (this != &other) {
    reset();
    path_ = std::exchange(other.path_, {});
    creator_ = other.creator_;
  }
  return *this;
}

void BoundPath::reset() noexcept {
  if (!path_.empty() && creator_ == ::getpid()) ::unlink(path_.c_str());
  path_.clear();
}

}  // namespace onecopy
