// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/channel/queue.h"
#include "onecopy/core/api.h"
#include "onecopy/rpc/value.h"

ONECOPY_API_BEGIN
/// Functions that turn Python's values into messages of queues and pipes and back, for programs in C++.
namespace onecopy::rpc {

// Thread safety: all functions may be called concurrently.

/// Returns the value that a Python program put into a queue or pipe: plain values and tensors as they are, and any other
/// object as Value::Foreign. The tensors of torch, numpy and onecopy arrive alike. A message that a program in C++ put as
/// one tensor is that tensor.
///
/// Throws unsupported for other messages of programs in C++, whose tag, data and tensors have a meaning of their own; for
/// an int of more than 64 bits, a list or dict that contains itself, and a tensor that torch has conjugated or negated
/// lazily. Throws bad_handle for a malformed message.
Value from_message(const Message& message);

/// Returns the message from which Python's get() or recv() makes the value. Tensors arrive as onecopy.Tensor. Throws
/// invalid_argument for a value that is nested more than 32 deep, for a text that is not UTF-8, and for a foreign value
/// inside another one.
Message to_message(const Value& value);

}  // namespace onecopy::rpc
ONECOPY_API_END
