// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "binding/module.h"

/// Gradients, tensors of torch's. All functions take None for a gradient that there is not.
/// Thread safety: used with the GIL held.
namespace onecopy::python::autograd {

/// As it crosses by the shortest way: gradients of sums are expanded, without memory of their own.
nb::object row_major(const nb::object& gradient);

/// The number of gradients in each memory.
class MemoryUsers {
 public:
  void add(const nb::object& gradient);
  /// A leaf's gradient: the tensor itself, and a copy where another one has its memory, or where it has not all of it.
  /// REQUIRES: it was added.
  nb::object own(const nb::object& gradient) const;

 private:
  std::unordered_map<std::uintptr_t, std::size_t> counts_;
};

}  // namespace onecopy::python::autograd
