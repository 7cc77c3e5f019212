// SPDX-License-Identifier: Apache-2.0
#include "onecopy/core/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "onecopy/core/error.h"

namespace onecopy {
namespace {

constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

[[noreturn]] void throw_invalid(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

[[noreturn]] void throw_overflow(DType dtype, std::span<const std::int64_t> shape) {
  throw_invalid(fmt::format("a {} tensor of shape [{}] needs more than 2^63 - 1 bytes; check the sizes",
                            name(dtype), fmt::join(shape, ", ")));
}

void check_dtype_and_dims(DType dtype, std::size_t ndim) {
  if (!is_valid(dtype))
    throw_invalid(fmt::format("{} is not the number of a dtype (1 to {})", static_cast<int>(dtype),
                              static_cast<int>(kLastDType)));
  if (ndim > kMaxDims)
    throw_invalid(
        fmt::format("a tensor has {} dimensions, but at most {} are possible: merge some with reshape",
                    ndim, kMaxDims));
}

/// Checks the sizes. Empty dimensions count as one, because strides are computed from these products as well.
void check_shape(DType dtype, std::span<const std::int64_t> shape) {
  auto bytes = static_cast<std::int64_t>(size_of(dtype));
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0) throw_invalid(fmt::format("size {} of dimension {} is negative", shape[i], i));
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(shape[i], 1), &bytes))
      throw_overflow(dtype, shape);
  }
}

void check_strides(DType dtype, std::span<const std::int64_t> shape,
                   std::span<const std::int64_t> strides) {
  if (strides.size() != shape.size())
    throw_invalid(fmt::format("{} strides were given for {} dimensions; give one for each", strides.size(),
                              shape.size()));
  std::int64_t last = 1;  // elements from the first to the end of the last one
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (strides[i] < 0)
      throw_invalid(fmt::format(
          "stride {} of dimension {} is negative, which cannot be shared; make a copy with positive "
          "strides first (numpy.ascontiguousarray(), tensor.contiguous())",
          strides[i], i));
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(std::max<std::int64_t>(shape[i] - 1, 0), strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last))
      throw_overflow(dtype, shape);
  }
  if (last > kMaxBytes / static_cast<std::int64_t>(size_of(dtype))) throw_overflow(dtype, shape);
}

}  // namespace

Layout::Layout(DType dtype, std::span<const std::int64_t> shape) : Layout(dtype) {
  check_dtype_and_dims(dtype, shape.size());
  check_shape(dtype, shape);
  std::int64_t* dims = resize(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    dims[i] = shape[i];
    dims[ndim_ + i] = stride;
    stride *= std::max<std::int64_t>(shape[i], 1);
  }
}

Layout::Layout(DType dtype, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides)
    : Layout(dtype) {
  check_dtype_and_dims(dtype, shape.size());
  check_shape(dtype, shape);
  check_strides(dtype, shape, strides);
  std::int64_t* dims = resize(shape.size());
  std::copy(shape.begin(), shape.end(), dims);
  std::copy(strides.begin(), strides.end(), dims + ndim_);
}

std::int64_t Layout::numel() const noexcept {
  std::int64_t count = 1;
  for (const std::int64_t size : shape()) count *= size;
  return count;
}

std::size_t Layout::nbytes() const noexcept { return static_cast<std::size_t>(numel()) * size_of(dtype_); }

std::size_t Layout::extent_bytes() const noexcept {
  const std::int64_t* size = dims();
  const std::int64_t* stride = size + ndim_;
  std::int64_t last = 1;
  for (std::size_t i = 0; i < ndim_; ++i) {
    if (size[i] == 0) return 0;
    last += (size[i] - 1) * stride[i];
  }
  return static_cast<std::size_t>(last) * size_of(dtype_);
}

bool Layout::is_contiguous() const noexcept {
  const std::int64_t* size = dims();
  const std::int64_t* stride = size + ndim_;
  std::int64_t expected = 1;
  bool contiguous = true;
  for (std::size_t i = ndim_; i-- > 0;) {
    if (size[i] == 0) return true;
    if (size[i] == 1) continue;
    contiguous = contiguous && stride[i] == expected;
    expected *= size[i];
  }
  return contiguous;
}

std::string Layout::str() const {
  std::string text = fmt::format("{}[{}]", name(dtype_), fmt::join(shape(), ", "));
  if (!is_contiguous()) text += fmt::format(" strides [{}]", fmt::join(strides(), ", "));
  return text;
}

bool Layout::operator==(const Layout& other) const noexcept {
  return dtype_ == other.dtype_ && ndim_ == other.ndim_ &&
         std::equal(dims(), dims() + numbers(), other.dims());
}

/// Makes room for the dimensions. REQUIRES: the layout is 0-d.
std::int64_t* Layout::resize(std::size_t ndim) {
  if (ndim * 2 <= kInline) {
    ndim_ = static_cast<std::uint8_t>(ndim);
    return inline_;
  }
  heap_ = std::allocator<std::int64_t>().allocate(ndim * 2);
  ndim_ = static_cast<std::uint8_t>(ndim);
  return heap_;
}

void Layout::copy_heap(const Layout& other) {
  heap_ = std::allocator<std::int64_t>().allocate(numbers());
  std::copy(other.heap_, other.heap_ + numbers(), heap_);
}

void Layout::free_heap() noexcept { std::allocator<std::int64_t>().deallocate(heap_, numbers()); }

}  // namespace onecopy
