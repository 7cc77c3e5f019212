// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace onecopy {

/// An owner of one file descriptor. The destructor closes it.
///
/// Thread safety: as a value; const members may be called concurrently. Invariant: holds an open descriptor or -1.
class Fd {
 public:
  Fd() noexcept = default;
  /// Takes over `fd`; -1 means that the object holds none.
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Fd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Gives the descriptor to the caller, which must close it.
  int release() noexcept {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  /// Closes the owned descriptor and takes over `fd`. Preserves errno.
  void reset(int fd = -1) noexcept;
  /// Returns another descriptor of the same open file, close-on-exec. Throws out_of_descriptors.
  Fd duplicate() const;

 private:
  int fd_ = -1;
};

}  // namespace onecopy
