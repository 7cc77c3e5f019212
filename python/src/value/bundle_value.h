// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "onecopy/core/bytes.h"

namespace onecopy::python {

/// The content of a bundle's `structure` if Python made it: docs/design/formats/python-bundle-v1.md.
///
/// The bundle's first rows are the value's tensors, each once. A tensor that is at several places of the value has
/// one more row for each further place, so that it is found by each of its names.
struct BundleValue {
  std::uint32_t tensors = 0;         ///< rows that the value refers to
  std::vector<std::uint32_t> again;  ///< for each row after these: the one of the same tensor
  Bytes value;                       ///< as encode_value() writes it; empty when there is none

  Bytes encode() const;
  /// Decodes the `structure` of a bundle of so many rows. The value is empty if it is not Python's. Throws bad_handle
  /// if it contradicts itself.
  static BundleValue decode(ByteSpan structure, std::size_t rows);
  /// The row in the value that is the same tensor.
  std::size_t original(std::size_t row) const { return row < tensors ? row : again[row - tensors]; }
};

}  // namespace onecopy::python
