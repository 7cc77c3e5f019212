// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "onecopy/memory/tensor.h"

/// Moving elements between arrays of any strides.
/// Thread safety: all functions may be called concurrently on different memory, with or without the GIL.
namespace onecopy::python {

/// Elements without their meaning. Unlike those of a Layout, the strides are bytes and may be negative.
struct StridedView {
  std::byte* data = nullptr;  ///< element 0
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::size_t element_size = 1;

  std::int64_t count() const noexcept;
};

StridedView strided(const Tensor& tensor);

/// May the two have an element in common?
bool overlap(const StridedView& a, const StridedView& b) noexcept;

/// If both overlap, the result is as if `from` had been copied before. REQUIRES: equal shape and element size.
void copy_elements(const StridedView& to, const StridedView& from);

/// The bytes of one element; as many of them count as the dtype has.
using Element = std::array<std::byte, 16>;
void fill(const StridedView& to, const Element& value) noexcept;

}  // namespace onecopy::python
