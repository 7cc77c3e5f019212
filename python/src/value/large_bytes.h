// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "binding/module.h"
#include "onecopy/core/bytes.h"
#include "onecopy/memory/tensor.h"

/// Sends large str, bytes and bytearray objects of a call: their bytes are copied once into a row in shared memory, like
/// the elements of a tensor, and once out of the row.
/// Thread safety: all functions are called with the GIL held, which copying releases.
namespace onecopy::python {

/// The size in bytes from which an object is sent as a row.
inline constexpr std::size_t kLargeBytes = std::size_t{64} << 10;

/// Returns a row with a copy of these bytes. REQUIRES: the bytes do not change.
Tensor row_of(ByteSpan bytes);
/// Returns a row with a copy of a bytearray, which cannot be resized meanwhile.
Tensor row_of_bytearray(PyObject* object);
/// Makes the object of a row. `flags` are value::kBytesRow, kTextRow or kByteArrayRow. Throws bad_handle for a tensor that
/// is not a row, and for a str that is not UTF-8.
nb::object object_of_row(const Tensor& row, std::uint8_t flags);

}  // namespace onecopy::python
