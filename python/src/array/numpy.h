// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "array/source.h"
#include "binding/module.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::python {

/// Is it one of numpy's own numbers, such as numpy.int64(3)? Their item() is Python's. Imports nothing.
/// REQUIRES: the GIL.
bool is_numpy_scalar(nb::handle value);

/// Exactly numpy.ndarray: subclasses have more content than their elements. Imports nothing. REQUIRES: the GIL.
bool is_ndarray(PyObject* object) noexcept;

/// Returns whether the object is exactly a numpy.ndarray, and not writable. REQUIRES: the GIL.
bool is_read_only_array(PyObject* object);

/// The tensor as a numpy.ndarray on the same memory, read-only if the tensor is. bfloat16 and the 8-bit
/// floats become the types of ml_dtypes; throws unsupported without that package. Imports numpy.
/// REQUIRES: the GIL.
nb::object to_numpy(const Tensor& tensor);

/// In messages, beside the flags of the torch bridge: a numpy.ndarray. No other flag may be set.
inline constexpr std::uint32_t kNumpyFlag = 32;

/// A numpy.ndarray that goes into a message as a tensor.
/// Thread safety: made, used and destroyed with the GIL held.
class SharedArray {
 public:
  /// Empty for all other objects, and for arrays that are better pickled: small ones, those of a subclass, and those
  /// whose elements no tensor has. An array in memory of onecopy is never too small.
  static std::optional<SharedArray> of(PyObject* object);

  /// The memory of onecopy that the array lies in, or else a copy in shared memory. The copy is row-major, or
  /// column-major if the array is. Throws out_of_memory.
  Tensor tensor() const;

 private:
  SharedArray(Source source, bool is_transposed)
      : source_(std::move(source)), is_transposed_(is_transposed) {}

  Source source_;
  bool is_transposed_;  ///< of a column-major array this is the row-major transpose
};

}  // namespace onecopy::python
