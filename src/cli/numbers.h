// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "onecopy/core/dtype.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::cli {

// Numbers as people write them, from the bytes of every element type.

/// The element at `at` as a double; the real part of complex ones.
double element_as_double(DType dtype, const std::byte* at) noexcept;
/// Stores a small whole number (0 to 8), which every numeric type can hold; true or false for bool.
void store_small_number(DType dtype, std::byte* at, int number) noexcept;

/// The facts by which a person or a test compares two tensors.
struct Summary {
  std::complex<double> sum;
  /// CRC-32C of the elements in row-major order, for any strides.
  std::uint32_t checksum = 0;
};
Summary summarize(const Tensor& tensor);
/// Checksum only: faster, reads every byte.
std::uint32_t checksum_of(const Tensor& tensor, std::uint32_t seed = 0);

/// "12.5", "nan", "3 + 4i".
std::string format_sum(DType dtype, std::complex<double> sum);

/// Calls visit(span of bytes) for each contiguous run of elements in row-major order.
template <class Visit>
void for_each_run(const Tensor& tensor, Visit&& visit);

}  // namespace onecopy::cli

#include "numbers_runs.h"
