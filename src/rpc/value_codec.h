// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "onecopy/channel/queue.h"
#include "onecopy/rpc/value.h"

/// The encoding of values as bodies of plain calls: the bytes of docs/design/formats/python-message-v1.md, with tensors
/// beside them.
namespace onecopy::rpc {

/// The body's form of a plain call, in the message's tag.
inline constexpr std::uint32_t kPlainBody = 4;

/// Appends the value to `message`. An object that occurs twice is one object on the other side. Throws invalid_argument
/// for a value that is nested more than 32 deep, and for a text that is not UTF-8.
void encode_value(const Value& value, Message& message);

/// Decodes a value. Throws bad_handle for bytes that no writer writes, and unsupported for a value that Value cannot
/// hold: an int of more than 64 bits, or a list or dict that contains itself.
Value decode_value(ByteSpan data, std::span<const Tensor> tensors);

}  // namespace onecopy::rpc
