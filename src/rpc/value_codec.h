// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "onecopy/channel/queue.h"
#include "onecopy/rpc/value.h"
#include "value/tags.h"

/// The encoding of values as bodies of plain calls: the bytes of docs/design/formats/python-message-v1.md, with tensors
/// beside them.
namespace onecopy::rpc {

/// The body's form of a plain call, in the message's tag.
inline constexpr std::uint32_t kPlainBody = 4;

/// Appends the value to `message`. An object that occurs twice is one object on the other side. `tensor_flags` are the
/// flags of its tensors. Throws invalid_argument for a value that is nested more than 32 deep or contains a foreign one,
/// and for a text that is not UTF-8.
void encode_value(const Value& value, Message& message, std::uint8_t tensor_flags = value::kTorchTensor);

/// Decodes a value. Throws bad_handle for bytes that no writer writes, and unsupported for a value that Value cannot
/// hold: an int of more than 64 bits, a list or dict that contains itself, or a tensor with a flag that is not in
/// `tensor_flags`.
Value decode_value(ByteSpan data, std::span<const Tensor> tensors,
                   std::uint8_t tensor_flags = value::kHarmlessFlags);

}  // namespace onecopy::rpc
