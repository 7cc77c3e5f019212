// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "array/source.h"
#include "binding/module.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::python {

/// Returns whether the value is a numpy scalar, such as numpy.int64(3), whose item() is a Python number. Does not
/// import numpy. REQUIRES: the GIL.
bool is_numpy_scalar(nb::handle value);

/// Returns whether the object is exactly a numpy.ndarray, since subclasses may have more content. Does not import
/// numpy. REQUIRES: the GIL.
bool is_ndarray(PyObject* object) noexcept;

/// Returns whether the object is exactly a numpy.ndarray, and not writable. REQUIRES: the GIL.
bool is_read_only_array(PyObject* object);

/// Returns the tensor as a numpy.ndarray on the same memory, read-only if the tensor is. bfloat16 and the 8-bit floats
/// become types of ml_dtypes; throws unsupported if the package is not installed. Imports numpy. REQUIRES: the GIL.
nb::object to_numpy(const Tensor& tensor);

/// The flag of a numpy.ndarray in messages, next to the flags of the torch bridge. No other flag may be set with it.
inline constexpr std::uint32_t kNumpyFlag = 32;

/// A numpy.ndarray that a message carries as a tensor.
/// Thread safety: made, used and destroyed with the GIL held.
class SharedArray {
 public:
  /// Returns the array. Empty for other objects, and for arrays that are better pickled: small arrays outside memory of
  /// onecopy, subclasses, and arrays whose elements a tensor cannot have.
  static std::optional<SharedArray> of(PyObject* object);

  /// Returns the memory of onecopy that the array lies in, or else a copy in shared memory. The copy is row-major, or
  /// column-major if the array is. Throws out_of_memory.
  Tensor tensor() const;

 private:
  SharedArray(Source source, bool is_transposed)
      : source_(std::move(source)), is_transposed_(is_transposed) {}

  Source source_;
  bool is_transposed_;  ///< of a column-major array this is the row-major transpose
};

}  // namespace onecopy::python
