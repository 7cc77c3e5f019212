// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "onecopy/core/tensor_view.h"
#include "os/fd.h"

namespace onecopy {

/// Owns a range of mapped memory and unmaps it.
///
/// Thread safety: as a value; const members may be called concurrently. The bytes are shared memory, and their users
/// synchronise them. Invariant: data() is null exactly when size() is 0.
class Mapping {
 public:
  Mapping() noexcept = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { reset(); }

  /// Maps `size` bytes of a file, shared, from `offset` (a multiple of the page size).
  /// REQUIRES: the file reaches that far and cannot shrink (see memfd.h), else touching the bytes is
  /// a SIGBUS. Throws out_of_mappings, out_of_memory, read_only, invalid_argument.
  static Mapping of(const Fd& fd, std::size_t size, Access access, std::size_t offset = 0);
  /// Private zero-filled memory, reserved but not committed.
  static Mapping anonymous(std::size_t size);

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }
  void reset() noexcept;
  /// Gives the memory back and keeps the addresses, which read as zero from now on: for readers that may come late.
  void forget() noexcept;
  /// Replaces this by private zero-filled memory at its addresses. Needs no room for another mapping; others may go
  /// on using the file. Throws out_of_mappings.
  void clear();

  /// The bytes at `offset` as a T. REQUIRES: in range, aligned for T.
  template <class T>
  T* as(std::size_t offset = 0) const noexcept {
    return reinterpret_cast<T*>(data_ + offset);
  }

 private:
  Mapping(std::byte* data, std::size_t size) noexcept : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Tests whether this process may make so many more small mappings, and keeps none.
bool has_room_for_mappings(std::size_t count) noexcept;

}  // namespace onecopy
