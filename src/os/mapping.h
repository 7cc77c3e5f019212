// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "onecopy/core/tensor_view.h"
#include "os/fd.h"

namespace onecopy {

/// An owner of a range of mapped memory. The destructor unmaps it.
///
/// Thread safety: as a value; const members may be called concurrently. The bytes are shared memory, and their users
/// synchronise their accesses. Invariant: data() is null exactly when size() is 0.
class Mapping {
 public:
  Mapping() noexcept = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping() { reset(); }

  /// Maps `size` bytes of a file, shared, from `offset` (a multiple of the page size). Throws out_of_mappings,
  /// out_of_memory, read_only, invalid_argument. REQUIRES: the file reaches that far and cannot shrink (see memfd.h),
  /// or an access raises SIGBUS.
  static Mapping of(const Fd& fd, std::size_t size, Access access, std::size_t offset = 0);
  /// Maps `size` bytes of a file for reading and writing, with a copy of this process's own of each page that is written
  /// to. A descriptor for reading is enough. Throws as of(). REQUIRES: as of().
  static Mapping copy_on_write(const Fd& fd, std::size_t size);
  /// Maps private zero-filled memory, reserved but not committed.
  static Mapping anonymous(std::size_t size);

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }
  void reset() noexcept { shrink(0); }
  /// Unmaps the pages behind the first `size` bytes. If `size` is 0, unmaps all.
  void shrink(std::size_t size) noexcept;
  /// Releases the memory and keeps the addresses mapped as zeros, for readers that may come late.
  void forget() noexcept;
  /// Replaces the memory by private zero-filled memory at the same addresses. Needs no room for another mapping. Other
  /// mappings of the file are not affected. Throws out_of_mappings.
  void clear();

  /// Returns the bytes at `offset` as a T. REQUIRES: they lie in the mapping and are aligned for T.
  template <class T>
  T* as(std::size_t offset = 0) const noexcept {
    return reinterpret_cast<T*>(data_ + offset);
  }

 private:
  Mapping(std::byte* data, std::size_t size) noexcept : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Returns whether this process may create `count` more small mappings. Creates none.
bool has_room_for_mappings(std::size_t count) noexcept;

}  // namespace onecopy
