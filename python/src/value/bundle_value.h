// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "onecopy/core/bytes.h"

namespace onecopy::python {

/// The content of a bundle's `structure` if Python made it: docs/design/formats/python-bundle-v1.md.
///
/// The bundle's first rows are the value's tensors, each once. A tensor that occurs at several places of the value has
/// another row for each further place, so that each of its names finds the tensor.
struct BundleValue {
  std::uint32_t tensors = 0;         ///< the number of rows that the value refers to
  std::vector<std::uint32_t> again;  ///< for each further row, the row of the same tensor
  Bytes value;                       ///< the bytes of encode_value(), or empty without a value

  Bytes encode() const;
  /// Decodes the `structure` of a bundle with `rows` rows. The value is empty if another language wrote the bundle.
  /// Throws bad_handle for a malformed structure.
  static BundleValue decode(ByteSpan structure, std::size_t rows);
  /// Returns the row of the same tensor to which the value refers.
  std::size_t original(std::size_t row) const { return row < tensors ? row : again[row - tensors]; }
};

}  // namespace onecopy::python
