// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>

#include "onecopy/core/api.h"
#include "onecopy/core/dtype.h"

ONECOPY_API_BEGIN
namespace onecopy {

ONECOPY_CONSTANT std::size_t kMaxDims = 64;

/// The element type, shape and strides (in elements) of a strided array, without its memory. Copying is cheap up to
/// three dimensions, which need no allocation.
///
/// Invariant: at most 64 dimensions, shape and strides >= 0, and both nbytes() and extent_bytes() fit in 63 bits.
/// Thread safety: as a value.
class Layout {
 public:
  /// Constructs the layout of a 0-d u8.
  Layout() noexcept : Layout(DType::u8) {}
  /// Constructs the layout of a 0-d `dtype`. REQUIRES: is_valid(dtype).
  explicit Layout(DType dtype) noexcept : dtype_(dtype) {}
  /// Constructs a row-major layout. Throws invalid_argument for negative sizes, an overflow or too many dimensions.
  Layout(DType dtype, std::span<const std::int64_t> shape);
  Layout(DType dtype, std::initializer_list<std::int64_t> shape)
      : Layout(dtype, std::span(shape.begin(), shape.size())) {}
  /// Constructs a layout with strides in elements. Throws invalid_argument also for negative strides, which no
  /// supported framework can use.
  Layout(DType dtype, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides);
  Layout(DType dtype, std::initializer_list<std::int64_t> shape,
         std::initializer_list<std::int64_t> strides)
      : Layout(dtype, std::span(shape.begin(), shape.size()), std::span(strides.begin(), strides.size())) {}

  Layout(const Layout& other) : dtype_(other.dtype_), ndim_(other.ndim_) {
    if (is_inline()) std::memcpy(inline_, other.inline_, sizeof inline_);
    else copy_heap(other);
  }
  Layout(Layout&& other) noexcept : dtype_(other.dtype_), ndim_(other.ndim_) { steal(other); }
  Layout& operator=(const Layout& other) {
    if (this != &other) *this = Layout(other);
    return *this;
  }
  Layout& operator=(Layout&& other) noexcept {
    if (this == &other) return *this;
    if (!is_inline()) free_heap();
    dtype_ = other.dtype_;
    ndim_ = other.ndim_;
    steal(other);
    return *this;
  }
  ~Layout() {
    if (!is_inline()) free_heap();
  }

  DType dtype() const noexcept { return dtype_; }
  std::size_t ndim() const noexcept { return ndim_; }
  std::span<const std::int64_t> shape() const noexcept { return {dims(), ndim_}; }
  std::span<const std::int64_t> strides() const noexcept { return {dims() + ndim_, ndim_}; }

  /// Returns the number of elements: 1 for 0-d, 0 if any size is 0.
  std::int64_t numel() const noexcept;
  std::size_t nbytes() const noexcept;
  /// Returns the number of bytes from the first element to the end of the last one; 0 if there are no elements.
  std::size_t extent_bytes() const noexcept;
  bool is_contiguous() const noexcept;

  /// Returns e.g. "float32[3, 4]", or "float32[3, 2] strides [4, 2]" if not contiguous.
  std::string str() const;
  bool operator==(const Layout& other) const noexcept;

 private:
  static constexpr std::size_t kInline = 6;  // shape and strides of three dimensions

  /// Returns how many numbers describe the shape and the strides together.
  std::size_t numbers() const noexcept { return std::size_t{2} * ndim_; }
  bool is_inline() const noexcept { return numbers() <= kInline; }
  const std::int64_t* dims() const noexcept { return is_inline() ? inline_ : heap_; }
  /// Moves the sizes and strides of `other` here and makes `other` 0-d. REQUIRES: dtype and ndim are equal already.
  void steal(Layout& other) noexcept {
    if (is_inline()) std::memcpy(inline_, other.inline_, sizeof inline_);
    else heap_ = other.heap_;
    other.ndim_ = 0;
  }
  std::int64_t* resize(std::size_t ndim);
  void copy_heap(const Layout& other);
  void free_heap() noexcept;

  union {
    std::int64_t inline_[kInline] = {};
    std::int64_t* heap_;
  };
  DType dtype_;
  std::uint8_t ndim_ = 0;
};

}  // namespace onecopy
ONECOPY_API_END
