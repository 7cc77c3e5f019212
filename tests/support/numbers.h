// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::testing {

/// The device of the tests' tensors: ONECOPY_TEST_DEVICE, or the CPU. Each program runs for both.
Device device();

/// A fresh tensor i64[count] of first, first + 1, ... on device().
Tensor numbers(std::int64_t count, std::int64_t first = 0);
/// One of them.
inline Tensor number(std::int64_t n) { return numbers(1, n); }
/// A fresh tensor u8[count] of the CPU, every element `value`.
Tensor filled_bytes(std::int64_t count, int value, bool pinned = false);

// Element by element, wherever the tensor is. Slow.

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

/// The first element of a row of numbers, and the last.
inline std::int64_t number_in(const Tensor& tensor) { return element(tensor, 0); }
inline std::int64_t last_of(const Tensor& tensor) { return element(tensor, tensor.shape()[0] - 1); }

}  // namespace onecopy::testing
