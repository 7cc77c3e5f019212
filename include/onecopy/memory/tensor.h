// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "onecopy/core/api.h"
#include "onecopy/core/tensor_view.h"
#include "onecopy/memory/block.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// A strided array on a block, which the tensor keeps alive. Copying copies the reference, not the data. A tensor that
/// was default-constructed, moved from or released is empty: it has no bytes, data() is null, and members that need
/// memory throw invalid_argument. Thread safety: as a value; the data is shared memory, and its users synchronise their
/// accesses.
class Tensor {
 public:
  Tensor() = default;
  /// Constructs a tensor. `data` points at element 0 inside the memory that `block` keeps alive.
  Tensor(BlockRef block, void* data, Layout layout, Device device, Access access) noexcept;

  const Layout& layout() const noexcept { return layout_; }
  DType dtype() const noexcept { return layout_.dtype(); }
  std::span<const std::int64_t> shape() const noexcept { return layout_.shape(); }
  std::span<const std::int64_t> strides() const noexcept { return layout_.strides(); }
  /// Returns the bytes of all elements; 0 for an empty tensor.
  std::size_t nbytes() const noexcept { return block_ ? layout_.nbytes() : 0; }
  Device device() const noexcept { return device_; }
  Access access() const noexcept { return access_; }
  const BlockRef& block() const noexcept { return block_; }

  /// Returns the address of element 0; null for an empty tensor. A write through the pointer of a read-only tensor
  /// raises SIGSEGV.
  void* data() const noexcept { return block_ ? data_ : nullptr; }
  /// Returns data() as a pointer to elements. Throws invalid_argument unless is_element_type<T>(dtype()), or T is
  /// std::byte, char or unsigned char, or the tensor is a row of u8 that holds an object of the class T. Elements of a
  /// tensor that is not contiguous lie strides() apart. static_cast<T*>(data()) does not check.
  template <class T>
  T* as() const {
    if (!holds<std::remove_cv_t<T>>()) [[unlikely]]
      refuse_as(sizeof(T));
    return static_cast<T*>(data_);
  }

  /// Throws invalid_argument for an empty tensor.
  TensorView view() const;

  /// Returns the part [begin, end) of dimension `dim`, on the same block. Throws invalid_argument.
  Tensor slice(std::size_t dim, std::int64_t begin, std::int64_t end) const;
  /// Returns a tensor with another layout on the same block, `offset_bytes` after element 0. Throws invalid_argument if
  /// it would reach beyond the bytes of this tensor.
  Tensor with_layout(Layout layout, std::size_t offset_bytes = 0) const;

  /// Releases the reference. The tensor is empty afterwards.
  void release() noexcept;
  /// Returns the reference. The tensor is empty afterwards.
  BlockRef take_block() noexcept { return std::move(block_); }
  explicit operator bool() const noexcept { return static_cast<bool>(block_); }

 private:
  template <class T>
  bool holds() const noexcept {
    if (!block_) return false;
    if (detail::is_byte<T> || is_element_type<T>(dtype())) return true;
    return std::is_class_v<T> && dtype() == DType::u8 && layout_.extent_bytes() >= sizeof(T) &&
           reinterpret_cast<std::uintptr_t>(data_) % alignof(T) == 0;
  }
  [[noreturn]] void refuse_as(std::size_t bytes) const;
  void check_not_empty() const;

  BlockRef block_;
  void* data_ = nullptr;
  Layout layout_;
  Device device_;
  Access access_ = Access::read_write;
};

}  // namespace onecopy
ONECOPY_API_END
