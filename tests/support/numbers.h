// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::testing {

/// Returns the device of the tests' tensors, which ONECOPY_TEST_DEVICE names, or the CPU. Each program runs for both.
Device device();

/// Returns a new tensor i64[count] of first, first + 1, ... on device().
Tensor numbers(std::int64_t count, std::int64_t first = 0);
/// Returns a new tensor i64[1] of the number `n`.
inline Tensor number(std::int64_t n) { return numbers(1, n); }
/// Returns a new tensor u8[count] on the CPU, whose elements are all `value`.
Tensor filled_bytes(std::int64_t count, int value, bool pinned = false);

// The functions below access single elements on any device, and are slow.

template <class T = std::int64_t>
T element(const Tensor& tensor, std::int64_t i) {
  T value{};
  copy_bytes_and_wait({&value, kCpu, tensor.as<T>() + i, tensor.device(), sizeof value});
  return value;
}

template <class T = std::int64_t>
void set_element(const Tensor& tensor, std::int64_t i, T value) {
  copy_bytes_and_wait({tensor.as<T>() + i, tensor.device(), &value, kCpu, sizeof value});
}

/// Returns the first and the last element of a row of numbers.
inline std::int64_t number_in(const Tensor& tensor) { return element(tensor, 0); }
inline std::int64_t last_of(const Tensor& tensor) { return element(tensor, tensor.shape()[0] - 1); }

}  // namespace onecopy::testing
