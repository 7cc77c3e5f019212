// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "onecopy/memory/tensor.h"

/// Copies elements between arrays of any strides.
/// Thread safety: all functions may be called concurrently on different memory, with or without the GIL.
namespace onecopy::python {

/// An array of elements of any dtype. Unlike in a Layout, the strides are in bytes and may be negative.
struct StridedView {
  std::byte* data = nullptr;  ///< element 0
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::size_t element_size = 1;

  std::int64_t count() const noexcept;
};

StridedView strided(const Tensor& tensor);

/// Returns whether the two may share an element.
bool overlap(const StridedView& a, const StridedView& b) noexcept;

/// Copies the elements. If both overlap, the result is as if `from` had been copied first. REQUIRES: equal shape and
/// element size.
void copy_elements(const StridedView& to, const StridedView& from);

/// The bytes of one element, of which the dtype uses the first.
using Element = std::array<std::byte, 16>;
void fill(const StridedView& to, const Element& value) noexcept;

}  // namespace onecopy::python
