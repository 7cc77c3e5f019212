// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "binding/module.h"

/// Functions for gradients, which are tensors of torch. All functions take None for a missing gradient.
/// Thread safety: used with the GIL held.
namespace onecopy::python::autograd {

/// Returns the gradient in row-major memory, which is sent fastest. Gradients of sums are expanded tensors without
/// memory of their own.
nb::object row_major(const nb::object& gradient);

/// Counts the gradients that lie in each memory.
class MemoryUsers {
 public:
  void add(const nb::object& gradient);
  /// Returns the gradient for a leaf: the tensor itself, or a copy if another gradient shares its memory or the tensor
  /// covers only a part of its memory.
  /// REQUIRES: the gradient was added.
  nb::object own(const nb::object& gradient) const;

 private:
  std::unordered_map<std::uintptr_t, std::size_t> counts_;
};

}  // namespace onecopy::python::autograd
