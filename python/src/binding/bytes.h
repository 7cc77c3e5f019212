// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "binding/module.h"
#include "onecopy/core/bytes.h"

/// Conversions between Python's bytes and spans of bytes.
namespace onecopy::python {

inline nb::bytes to_python(ByteSpan bytes) { return nb::bytes(bytes.data(), bytes.size()); }

inline ByteSpan span_of(const nb::bytes& bytes) {
  return std::as_bytes(std::span(bytes.c_str(), bytes.size()));
}

}  // namespace onecopy::python
