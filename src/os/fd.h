// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

namespace onecopy {

/// An owner of one file descriptor, alone or together with others. The last owner closes it.
///
/// Thread safety: as a value; const members may be called concurrently. Invariant: holds an open descriptor or -1.
class Fd {
 public:
  Fd() noexcept = default;
  /// Takes over `fd`; -1 means that the object holds none.
  explicit Fd(int fd) noexcept : fd_(fd) {}
  /// Owns the descriptor of `whole` together with all that have this pointer.
  explicit Fd(std::shared_ptr<const Fd> whole) noexcept : fd_(whole->fd_), whole_(std::move(whole)) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), whole_(std::move(other.whole_)) {}
  Fd& operator=(Fd&& other) noexcept {
    Fd taken(std::move(other));
    std::swap(fd_, taken.fd_);
    std::swap(whole_, taken.whole_);
    return *this;
  }
  ~Fd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Gives the descriptor to the caller, which must close it. REQUIRES: this is the only owner.
  int release() noexcept { return std::exchange(fd_, -1); }
  /// Ends the ownership, and takes over `fd`. Preserves errno.
  void reset(int fd = -1) noexcept;
  /// Returns another descriptor of the same open file, close-on-exec. Throws out_of_descriptors.
  Fd duplicate() const;

 private:
  int fd_ = -1;
  std::shared_ptr<const Fd> whole_;  ///< shared with the other owners; null for the only owner
};

}  // namespace onecopy
