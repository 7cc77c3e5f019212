// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy::ascend {

/// Implements Backend::copy(). A copy between the host and another card's memory goes through memory of this process's
/// own card. A copy between cards without a path goes through the host, and is done on return.
void enqueue(const Transfer& transfer, Stream stream);
/// Waits for the stream. Throws unsupported, without harm to the capture, if the stream is being captured.
void synchronize(int ordinal, Stream stream);
/// Returns whether the stream is being captured; false if the runtime does not know captures.
bool is_captured(int ordinal, Stream stream);
std::optional<Error> failure(int ordinal);

}  // namespace onecopy::ascend
