// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "rpc/value_tags.h"

/// The format that encode_value() and decode_value() share: docs/design/formats/python-message-v1.md.
namespace onecopy::python {

using rpc::kMostDeep;
using Tag = rpc::ValueTag;
using enum rpc::ValueTag;

/// Throws bad_handle: bytes that encode_value() does not write.
[[noreturn]] void refuse_value(const std::string& problem);

}  // namespace onecopy::python
